"""The public names of the application and the modules that define them.

Each is imported on first use.
"""

from .config.constrained import OwnConfig as OwnConfig
from .config.constraints import ConstraintConfig as ConstraintConfig
from .config.constraints import DualConfig as DualConfig
from .config.errors import UserError as UserError
from .config.run import PrimalConfig as PrimalConfig
from .experiments import EXPERIMENTS as EXPERIMENTS
from .exporting import export as export
from .loading import Model as Model
from .loading import load as load
from .loop import Callbacks as Callbacks
from .main import fit as fit
from .task import Task as Task
from .tasks.own import OwnTask as OwnTask
