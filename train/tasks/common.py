"""Shared parts of tasks: the training of constrained ones, and the pass of a split through a model."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import jax
import numpy as np

from unroll_jax import in_coordinates

from ..config.constrained import ConstrainedConfig, PerturbedConfig, check_epochs
from ..config.errors import UserError
from ..config.run import RunConfig
from ..constraints import DescentConstraints
from ..data.splits import SPLITS
from ..optimizers import make_optimizer
from ..sharding.mesh import make_mesh, put_beside
from ..system.distributed import fetch
from ..task import Row, Task, Training

C = TypeVar("C", bound=RunConfig)

# The noise of the evaluation is the same for every run, method and level (scaled), so that runs compare like with like.
NOISE_SEED = 20260101
# What "feasible on held-out data" is said of where constraints bind something else than means over samples.
BOUND = {"tail": " in the mean over the worst samples", "positive": " in every sample, but for the leeway"}


class DataTask(Task, Generic[C]):
    """A task on one data set: from its options and data alone it is made again."""

    def __init__(self, config: C, data: Any):
        self._config, self.data = config, data

    @property
    def config(self) -> C:
        """All options."""
        return self._config

    def with_config(self, config: C) -> Self:
        """The same by another configuration, on the same data."""
        return type(self)(config, self.data)

    def data_fingerprint(self) -> Row:
        """Figures that change when the data do."""
        return self.data.data_fingerprint()

    def model_spec(self) -> Row:
        """Whatever of the data a model needs to know."""
        return self.data.model_spec()

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[Any]:
        """Samples of the train split."""
        size, seed = self.config.batch_size, self.config.seed
        return self.data.batches("train", batch_size=size, seed=seed, start_step=start_step, rows=rows)


def keep_examples(data: Any, config: Any) -> None:
    """Keeps as many examples of each split as `train_examples`, `validation_examples` and `test_examples` say.

    Raises:
      UserError: naming the option of a split that has fewer.
    """
    for split in SPLITS:
        count = getattr(config, f"{split}_examples")
        try:
            if count is not None:
                data.keep(split, count)
        except ValueError as error:
            raise UserError(f"--{split}-examples does not fit the data: {error}") from error


def constrained_training(
    config: ConstrainedConfig,
    *,
    num_layers: int,
    steps_an_epoch: int,
    numbers: Sequence[int] | None = None,
    trained: Any = None,
    bases: Any = None,
) -> Training:
    """Training by a configuration with constraints, plain or under them.

    Args:
      config: all options.
      num_layers: L.
      steps_an_epoch: batches that fit into a pass over the data.
      numbers: of layers 0..L in the model, where not every layer has a loss; None: their places.
      trained: for each parameter, whether it is trained; None for all.
      bases: what the optimiser takes parameters' entries for, see `unroll_jax.in_coordinates`; None leaves them.
    """
    check_epochs(config, steps_an_epoch)
    optimizer = make_optimizer(config.primal, num_steps=config.steps, trained=trained)
    return Training(
        objective=DescentConstraints(config, num_layers=num_layers, steps_an_epoch=steps_an_epoch, numbers=numbers),
        optimizer=optimizer if bases is None else in_coordinates(optimizer, bases),
        num_steps=config.steps,
        validate_every=config.validate_every,
        mesh=make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate),
        stop_on_collapse=config.on_collapse == "stop",
    )


def check_batch_size(batch_size: int, num_examples: int, what: str) -> None:
    """Refuses a batch larger than the train split, before anything is made of its size; ``what`` are the examples."""
    if batch_size > num_examples:
        raise UserError(
            f"--batch-size must be at most the {num_examples:,} {what} of the train split, got {batch_size}"
        )


def check_noise(gamma: float, seed: int) -> None:
    """Refuses noise that a prediction cannot have."""
    if not (gamma >= 0.0 and math.isfinite(gamma)):
        raise UserError(f"--gamma must be finite and at least 0, got {gamma}")
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed must be a whole number in [0, 2**32), got {seed}")


def on_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """``(params, batch, *others) -> arrays of NumPy``, jitted; batches are put on the mesh of the parameters."""
    compiled = jax.jit(function)
    return lambda params, batch, *others: fetch(compiled(params, put_beside(params, batch), *others))


def noise_figures(config: ConstrainedConfig) -> Row:
    """The noise of training and that of the evaluation, which alone has to be the same for runs to compare."""
    return {"train_gamma": config.train_gamma, "test_gammas": sorted({float(gamma) for gamma in config.test_gammas})}


def disturbed_figures(config: PerturbedConfig, num_layers: int, name: str, score: Callable[[float, int], float]) -> Row:
    """``score(noise on layers, lost layer)``, level by level and layer by layer, as far as these were asked for."""
    levels = sorted(config.test_layer_noises)
    lost = range(1, num_layers + 1) if config.lose_layers else ()
    figures = {
        f"layer_noise_{name}": {str(level): score(level, 0) for level in levels},
        f"lost_layer_{name}": {str(layer): score(0.0, layer) for layer in lost},
    }
    return {key: cases for key, cases in figures.items() if cases}


def feasibility_words(evaluation: Row) -> str:
    """Describes the feasibility of an evaluation, in words."""
    if evaluation["method"] == "erm":
        return "unconstrained"
    if evaluation["method"] == "deep_supervision":
        return "with fixed weights on its layers"
    words = "feasible on held-out data" if evaluation["feasible"] else "NOT feasible on held-out data"
    return words + BOUND.get(evaluation["bind"], "")


def num_parameters(params: Any) -> int:
    """Returns the number of parameters in a pytree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
