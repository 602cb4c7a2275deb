"""Tasks from Python: a function that draws parameters, one of layer losses, and
arrays to train on."""

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...config.errors import UserError
from ...core.evaluate import noise_trials
from ...core.task import Batch, Params, Reading, Row, SampleLosses, Task, Trial
from ...data.prepared import by_step, read_ahead, shuffled
from ...sharding import rematerialised
from ..common import feasibility_words, on_batches
from .options import OwnConfig

Arrays = Mapping[str, np.ndarray]  # with a row a sample
LayerLosses = Callable[[Params, Batch], SampleLosses]
NO_NUMBERS = "OSUMm"  # kinds of dtypes: objects, texts, times
UNLIKE: Any = (np.void, np.longdouble, np.clongdouble)  # records, numbers JAX lacks


def own_task(
    init: Callable[[jax.Array], Params],
    layer_losses: Callable[..., Any],
    *,
    train: Mapping[str, np.ndarray],
    validation: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray] | None = None,
    config: OwnConfig | None = None,
    **functions: Any,
) -> Task:
    """Returns the task of a model of any library, trained plainly or under descent
    constraints. ``functions`` are other fields of a `Task` by name.

    Args:
      init: ``key -> params``, as a Flax module's ``init`` with its inputs given.
      layer_losses: ``(params, batch) -> (samples, L + 1)``: losses of layers 0 to L,
        each row from its batch row.
      train: Arrays to train on, by name, with a row a sample. A batch is a dict of some
        of their rows.
      validation: Arrays to validate on.
      test: Arrays to evaluate on. None takes the validation arrays.
      config: Options of the training.
      functions: Fields of a `Task` in place of these, such as ``predict`` or
        ``baselines``. With other ``losses`` goes ``read=None``, which reads by them.

    Raises:
      UserError: if arrays are missing or have different numbers of rows, losses are of
        another shape, or a number is not allowed.

    Example:
      >>> import jax.numpy as jnp, numpy as np
      >>> from unroll_jax.train import OwnConfig, own_task
      >>> def losses(scale, batch):  # of the input, and of one layer's output
      ...     x = batch["x"]
      ...     return jnp.concatenate([x**2, (scale * x) ** 2], axis=1)
      >>> arrays = {"x": np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None]}
      >>> config = OwnConfig(steps=10, batch_size=4)
      >>> one = jnp.ones(())
      >>> own_task(
      ...     lambda key: one, losses, train=arrays, validation=arrays, config=config
      ... ).num_layers
      1
    """
    options = OwnConfig() if config is None else config
    _check_kinds(init, layer_losses, options)
    splits: dict[str, Arrays] = {
        "train": train,
        "validation": validation,
        "test": validation if test is None else test,
    }
    for split, arrays in splits.items():
        _check_arrays(split, arrays, train)
    splits = {split: _native(arrays) for split, arrays in splits.items()}
    sizes = {split: len(next(iter(one.values()))) for split, one in splits.items()}
    num_layers = _num_layers(init, layer_losses, train)
    remade = rematerialised(layer_losses, options.remat)

    def batches(seed: int, start_step: int, rows: Any) -> Iterator[Batch]:
        drawn = shuffled(
            sizes["train"],
            functools.partial(_rows_of, splits["train"]),
            batch_size=options.batch_size,
            seed=seed,
            rows=rows,
        )
        return read_ahead(drawn, start_step)

    def examples(split: str, trial: Trial) -> Iterable[Batch]:
        """Fills the last batch up with first rows: losses may depend on its size."""
        size = sizes[split]
        count = options.batch_size
        return read_ahead(
            by_step(
                lambda step: _rows_of(
                    splits[split], np.arange(step * count, (step + 1) * count) % size
                ),
                -(-size // count),
            )
        )

    def join(parts: Any, split: str) -> Reading:
        return {
            name: np.concatenate([one[name] for one in parts])[: sizes[split]]
            for name in parts[0]
        }

    def fingerprint() -> Row:
        sums = {split: _checksum(arrays) for split, arrays in splits.items()}
        return sums | {"layers": num_layers}

    task = Task(
        options=options,
        num_layers=num_layers,
        init=init,
        batches=batches,
        examples=examples,
        losses=lambda params, batch, trial: (remade(params, batch), {}),
        make=lambda other: own_task(
            init, layer_losses, config=other, **splits, **functions
        ),
        predict=_predict(layer_losses),
        summary=summary,
        trial=Trial(float(options.train_gamma)),
        trials=noise_trials("loss", options.noise_levels, Trial()),
        read=lambda params, batch, trial: {"losses": layer_losses(params, batch)},
        join=join,
        num_examples=sizes["train"],
        fingerprint=fingerprint,
        # for the model card: your code builds the model
        spec=lambda: {"examples": sizes},
    )
    return task._replace(**functions)


def summary(evaluation: Row) -> str:
    """Returns the loss of the last layer, and feasibility."""
    return (
        f"loss {evaluation['layer_losses'][-1]:.4g} on the test split,"
        f" {feasibility_words(evaluation)}"
    )


def _predict(layer_losses: LayerLosses) -> Callable[[Params, Batch], np.ndarray]:
    see = on_batches(layer_losses)

    def predict(params: Params, inputs: Batch) -> np.ndarray:
        """Returns the losses of every layer on a batch."""
        return see(params, inputs)

    return predict


def _rows_of(arrays: Arrays, numbers: Any) -> Batch:
    return {name: array[np.asarray(numbers)] for name, array in arrays.items()}


def _check_kinds(init: Any, layer_losses: Any, config: Any) -> None:
    """Checks the types of functions and options."""
    for name, function in (("init", init), ("layer_losses", layer_losses)):
        if not callable(function):
            raise UserError(
                f"{name} must be a function, got {type(function).__name__}; see"
                " own_task"
            )
    if not isinstance(config, OwnConfig):
        raise UserError(
            f"config must be as OwnConfig(steps=1000), got {type(config).__name__};"
            " pass an OwnConfig"
        )


def _check_arrays(split: str, arrays: Any, train: Arrays) -> None:
    """Checks that a split maps the names of the train split to arrays of numbers."""
    if not isinstance(arrays, Mapping):
        raise UserError(
            f"{split} must be a dict of arrays by name, got {type(arrays).__name__};"
            " pass a dict"
        )
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise UserError(
                f"names of arrays of {split} must be texts, got {name!r}; rename it"
            )
        if isinstance(array, np.ma.MaskedArray):
            raise UserError(
                f"{split}[{name!r}] is masked; leave out its masked rows, or fill them"
            )
        is_array = isinstance(array, np.ndarray | jax.Array)
        if not is_array or array.ndim == 0 or not _is_numeric(array.dtype):
            given = (
                f"shape {array.shape} of {array.dtype}"
                if is_array
                else type(array).__name__
            )
            raise UserError(
                f"{split}[{name!r}] must be an array of numbers with a row a sample,"
                f" got {given}"
            )
        if not _is_kept(array):
            raise UserError(
                f"{split}[{name!r}] of {array.dtype} has numbers beyond 32 bits;"
                " renumber it"
            )
    rows, known = (
        {name: np.shape(array)[1:] for name, array in one.items()}
        for one in (arrays, train)
    )
    if unlike := [name for name in known if rows.get(name) != known[name]]:
        raise UserError(
            f"{split} must have {unlike[0]!r} with rows of shape {known[unlike[0]]}, as"
            " train has"
        )
    sizes = {name: len(array) for name, array in arrays.items()}
    if not sizes or len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise UserError(
            f"arrays of {split} must have the same number of rows, at least 1, got"
            f" {sizes}"
        )
    for name, array in arrays.items():
        with np.errstate(over="ignore"):  # of float64 that JAX narrows
            finite = np.isfinite(
                array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
            )
        if not finite.all():
            row = np.argwhere(~np.asarray(finite))[0][0]
            raise UserError(
                f"{split}[{name!r}] is not finite in row {row}; mend the row, or leave"
                " it out"
            )


def _is_numeric(dtype: Any) -> bool:
    """Returns whether a dtype is of one number that JAX has; bfloat16 is, of kind V as
    structured dtypes are."""
    if not isinstance(dtype, np.dtype) or issubclass(dtype.type, UNLIKE):  # of keys
        return False
    return dtype.kind not in NO_NUMBERS


def _is_kept(array: Any) -> bool:
    """Returns whether JAX keeps the values of whole numbers: 64 bits are cut to 32
    unless x64 is on."""
    kept = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind not in "iu" or kept == array.dtype or array.size == 0:
        return True
    return np.iinfo(kept).min <= array.min() and array.max() <= np.iinfo(kept).max


def _num_layers(
    init: Callable[[jax.Array], Params], layer_losses: LayerLosses, arrays: Arrays
) -> int:
    """Returns L from the shape of the losses of two samples. Nothing is computed."""
    needed = "layer_losses must be floating, of shape (samples, L + 1) with L >= 1"
    losses = jax.eval_shape(
        lambda batch: layer_losses(init(jax.random.key(0)), batch), _two(arrays)
    )
    if not isinstance(losses, jax.ShapeDtypeStruct):
        raise UserError(
            f"{needed}, got a {type(losses).__name__}; return one array, as"
            " jnp.stack(losses, -1) is"
        )
    whole = len(losses.shape) == 2 and losses.shape[0] == 2 and losses.shape[1] >= 2
    if not (whole and jnp.issubdtype(losses.dtype, jnp.floating)):
        raise UserError(f"{needed}, got {losses.dtype} {losses.shape} for 2 samples")
    return losses.shape[1] - 1


def _two(arrays: Arrays) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch of two samples, with dtypes as JAX computes: float64 becomes
    float32 unless x64 is on."""
    dtypes = {
        name: jax.dtypes.canonicalize_dtype(array.dtype)
        for name, array in arrays.items()
    }
    return {
        name: jax.ShapeDtypeStruct((2, *arrays[name].shape[1:]), dtype)
        for name, dtype in dtypes.items()
    }


def _native(arrays: Arrays) -> dict[str, Any]:
    """Returns arrays in the byte order of this machine, the only one JAX takes."""
    return {
        name: array
        if array.dtype.isnative
        else array.astype(array.dtype.newbyteorder("="))
        for name, array in arrays.items()
    }


def _checksum(arrays: Arrays) -> int:
    total = 0
    for name, array in sorted(arrays.items()):
        kind = f"{name}\0{array.dtype}\0{array.shape}"
        total = zlib.crc32(
            np.ascontiguousarray(array).tobytes(), zlib.crc32(kind.encode(), total)
        )
    return total
