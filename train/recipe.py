"""What the training loop and the commands on run folders need to know of a kind of experiment."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from train.errors import UserError
from train.processes import fetch
from train.tuning import Tuning

__all__ = [
    "INFEASIBLE",
    "UNJUDGED",
    "Experiment",
    "Kind",
    "NotFiniteError",
    "Recipe",
    "Validation",
    "check_batch_size",
    "require_finite",
    "require_finite_state",
]

Log = Callable[[str], None]

# Below any score of a checkpoint that may be reported without a warning.
INFEASIBLE = -1e6
# Score of a checkpoint that was saved in a hurry: below that of any other.
UNJUDGED = -1e30


class NotFiniteError(UserError):
    """A number of a training run is not finite; the loop adds what is kept, and the way out."""


class Validation(NamedTuple):
    """What one validation found.

    Attributes:
      row: for metrics.jsonl.
      score: of its checkpoint; the highest is the best, and at most `INFEASIBLE` where constraints are not met.
      collapse: that the model has collapsed, in words, or None.
    """

    row: dict[str, Any]
    score: float
    collapse: str | None = None


class Recipe(NamedTuple):
    """One training run, as the loop sees it.

    Attributes:
      title: what the progress bar is called.
      mesh: the devices that it trains on.
      num_steps: how many steps the run has.
      validate_every: steps between validations, each of which writes a checkpoint.
      stop_on_collapse: whether two collapses in a row end the run.
      init: ``() -> state``, a pytree with attributes ``step``, ``params`` and ``evaluated``, the parameters to judge
        and export, from the seed alone.
      step: ``(state, batch) -> (state, metrics)``; `train.sharding.place` compiles it for the mesh.
      batches: ``start_step -> iterator`` over batches without end; a batch depends on the seed and its step alone.
      describe: ``(step, metrics) -> (row, words)``: the row for metrics.jsonl and a few words for the progress bar.
        It raises `NotFiniteError` where a number is not finite.
      validate: ``state -> Validation``.
      remarks: lines to log where the run starts from ``init``, and not from a checkpoint.
      rates: the options to lower where a number is not finite.
    """

    title: str
    mesh: Mesh
    num_steps: int
    validate_every: int
    stop_on_collapse: bool
    init: Callable[[], Any]
    step: Any
    batches: Callable[[int], Iterator[Any]]
    describe: Callable[[int, Any], tuple[dict[str, Any], dict[str, str]]]
    validate: Callable[[Any], Validation]
    remarks: tuple[str, ...] = ()
    rates: str = "--primal.learning-rate or --primal.clip-norm"


class Kind(NamedTuple):
    """A kind of experiment: its configuration, its data, its recipe, and how its runs are judged.

    Attributes:
      config: the dataclass of its configuration, which has the field ``out``.
      check: ``config -> None``; raises `UserError` for what cannot be.
      variants: ``config -> [(subfolder, config), ...]``: the runs of one command; "" is the run folder itself.
      label: ``config -> name`` of the run folder where none is given; the same for the same command.
      describe: ``config -> words`` that the log begins a run with.
      load: ``(config, log) -> data``, prepared on first use.
      found: ``data -> figures`` that change when the data do; kept in config.json.
      recipe: ``(config, data) -> Recipe``.
      evaluate: ``(config, data, state, run folder) -> evaluation``, JSON values; pictures go to the folder.
      verdict: ``evaluation -> words``.
      report: ``(run folders, where to, log) -> None``.
      tuning: what a search may vary, and how it ranks.
    """

    config: type
    check: Callable[[Any], None]
    variants: Callable[[Any], list[tuple[str, Any]]]
    label: Callable[[Any], str]
    describe: Callable[[Any], str]
    load: Callable[[Any, Log], Any]
    found: Callable[[Any], dict[str, Any]]
    recipe: Callable[[Any, Any], Recipe]
    evaluate: Callable[[Any, Any, Any, Path], dict[str, Any]]
    verdict: Callable[[dict[str, Any]], str]
    report: Callable[[Sequence[Path], Path, Log], object]
    tuning: Tuning


class Experiment(NamedTuple):
    """One row of the table.

    Attributes:
      kind: what the commands need of it.
      config: the defaults, which command-line options override.
      summary: one line for `python -m train list`.
      paper: where it comes from.
      expect: what a run should end with, and how long it takes.
    """

    kind: Kind
    config: Any
    summary: str
    paper: str
    expect: str


def check_batch_size(batch_size: int, num_examples: int, what: str) -> None:
    """Refuses a batch larger than the train split, before anything is made of its size.

    Raises:
      UserError: naming both sizes; ``what`` is what the examples are called.
    """
    if batch_size > num_examples:
        raise UserError(
            f"--batch-size must be at most the {num_examples:,} {what} of the train split, got {batch_size}"
        )


def require_finite(step: int, values: Any, what: str, *, each: str | None = None) -> None:
    """Checks that a number, or every one of a list, is finite.

    Args:
      step: of the training run, for the message.
      values: the number or the list.
      what: what it is, as in "the loss".
      each: what an entry of the list belongs to, as in "layer"; the first one that is not finite is named.

    Raises:
      NotFiniteError: if one is not.
    """
    broken = np.flatnonzero(~np.isfinite(np.asarray(values)))
    if broken.size:
        place = "" if each is None else f", first at {each} {broken[0]}"
        raise NotFiniteError(f"the {what} is not finite at step {step}{place}")


def require_finite_state(state: Any) -> None:
    """Checks that every number of a training state is finite, so that none that is not is ever saved.

    Raises:
      NotFiniteError: naming the first array that is not.
    """
    leaves = [
        (path, leaf) for path, leaf in jax.tree.leaves_with_path(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    finite = fetch(_are_finite([leaf for _, leaf in leaves]))
    for (path, _), holds in zip(leaves, finite, strict=True):
        if not holds:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise NotFiniteError(f"{name} is not finite after step {int(state.step)}")


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
