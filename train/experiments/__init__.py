"""Every experiment by name."""

from ..config.run import Experiment
from .images import SUPERVISED
from .language import LANGUAGE
from .sparse_coding import DEMO, SPARSE_CODING
from .text import TEXT
from .video import VIDEO

EXPERIMENTS: dict[str, Experiment] = {"demo": DEMO, **VIDEO, **SUPERVISED, **SPARSE_CODING, **TEXT, **LANGUAGE}
