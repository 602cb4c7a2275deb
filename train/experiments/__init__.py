"""Every experiment by name."""

from ..config.run import Experiment
from .constrained import DEMO, IMAGE_SETS, SPARSE_CODING, TEXT, VIDEO
from .images import SUPERVISED
from .language import LANGUAGE

EXPERIMENTS: dict[str, Experiment] = {
    "demo": DEMO,
    **IMAGE_SETS,
    **VIDEO,
    **SUPERVISED,
    **SPARSE_CODING,
    **TEXT,
    **LANGUAGE,
}
