"""The public names of the application and the modules that define them.

Each is imported on first use.
"""

from .config.constrained import ConstraintConfig as ConstraintConfig
from .config.constrained import DualConfig as DualConfig
from .config.errors import UserError as UserError
from .config.run import PrimalConfig as PrimalConfig
from .core.metrics import Callbacks as Callbacks
from .core.task import Plan as Plan
from .core.task import Task as Task
from .core.task import Trial as Trial
from .exporting import export as export
from .loading import Model as Model
from .loading import load as load
from .main import fit as fit
from .registry import EXPERIMENTS as EXPERIMENTS
from .tasks.own.options import OwnConfig as OwnConfig
from .tasks.own.task import own_task as own_task
