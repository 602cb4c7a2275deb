"""Classification of images and of the pixels of scenes, by networks with an
equilibrium or without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.fixed_point import Probe

from ...config.errors import UserError, option_text
from ...core.evaluate import read as read_split
from ...core.metrics import Predictions, json_numbers, write_predictions
from ...core.task import (
    Log,
    NoData,
    Params,
    Reading,
    Row,
    Task,
    Trial,
    no_figures,
)
from ...data.files import SPLITS
from ...data.pictures import ImageSpec
from ...data.prepared import keep_examples
from ...sharding import gathered, rematerialised
from ..common import on_batches, pictures_of, to_unit, train_batches
from . import data as images
from .models import (
    FEATURES,
    SOLVE,
    Label,
    adjoint_probe,
    build,
    confusion,
    counted,
    cross_entropies,
    feature_figures,
    flip,
    flip_and_shift,
    lipschitz_bound,
    scores,
    sees_vectors,
    solve_figures,
    standardise,
    weight_norms,
)
from .options import SceneTaskConfig, SupervisedConfig

SHOWN = 4  # scenes: evenly spread over the test split
# Scores of a summary, by name in evaluation.json.
OF_IMAGES = {"accuracy": "accuracy"}
OF_SCENES = {
    "intersection_over_union": "mIoU",
    "class_accuracy": "mAcc",
    "accuracy": "aAcc",
}


class Classifier(NamedTuple):
    """A model of images whose pixels are in [0, 1].

    Attributes:
      init: ``key -> params``.
      apply: ``(params, pixels, probe) -> (logits, EquilibriumInfo or None)``.
      loss: ``(params, logits, labels) -> losses`` of the labels, 0 where one does not
        count.
      probe: of the backward solve, see `Task`.
      inspect: ``(params, pixels) -> (logits, info, FEATURES by sample)``, for
        evaluations, or None for a model without an equilibrium.
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, Array, Any], tuple[Array, Any]]
    loss: Callable[[Params, Array, Any], Array]
    probe: Callable[[int], Any] | None = None
    inspect: Callable[[Params, Array], tuple[Array, Any, Row]] | None = None


class Inner(NamedTuple):
    """What attacks and certificates take of a task.

    Attributes:
      data: images by split.
      spec: of the images.
      logits: ``(params, pixels in [0, 1]) -> logits``.
      read: the same of pixels in 0..255, on batches of NumPy.
    """

    data: Any
    spec: ImageSpec
    logits: Callable[[Params, Array], Array]
    read: Callable[[Params, Any], np.ndarray]


def open_task(options: SupervisedConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    return make(options, load_images(options, log))


def rebuild(options: SupervisedConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without data, to predict."""
    return make(options, without_images(spec))


def load_images(options: SupervisedConfig, log: Log) -> Any:
    """Opens the images of options, and keeps as many as these say."""
    data = images.load(options.data, log=log)
    keep_examples(data, options)
    return data


def without_images(spec: Row) -> NoData:
    """Returns the properties of images that a task's ``spec`` has."""
    return NoData(ImageSpec.from_json(spec))


def make(options: SupervisedConfig, data: Any) -> Task:
    """Returns the task: classification of images, or of the pixels of scenes, by cross
    entropy in nats."""
    return classification(options, data, _network(options, data.spec), make)


def _network(options: SupervisedConfig, spec: ImageSpec) -> Classifier:
    """Returns the network of the options."""
    network = options.network
    model = build(network, spec.num_classes)
    free = rematerialised(model.apply, options.remat)
    limit = getattr(options, "lipschitz", None)

    def init(key: jax.Array) -> Params:
        return model.init(key, flat(jnp.zeros((1, *spec.shape))))

    def flat(pixels: Array) -> Array:
        shown = standardise(pixels, spec.mean, spec.std)
        return shown.reshape(len(shown), -1) if sees_vectors(network) else shown

    def limited(params: Params, logits: Array) -> Array:
        """Scales logits down to meet a Lipschitz constant if the options have one."""
        if limit is None:
            return logits
        bound = lipschitz_bound(network, params, spec.shape[:2], spec.std)
        return logits * jnp.minimum(1.0, limit / bound)

    def apply(params: Params, pixels: Array, probe: Any) -> tuple[Array, Any]:
        """Returns logits and figures of the solve."""
        probed = {} if probe is None else {"probe": probe}
        logits, info = free(params, flat(pixels), **probed)
        return limited(params, logits), info

    def inspect(params: Params, pixels: Array) -> tuple[Array, Any, Row]:
        (logits, info), states = model.apply(
            params, flat(pixels), mutable=["intermediates"]
        )
        return limited(params, logits), info, feature_figures(states, len(pixels))

    _check_network(network, init)

    def loss(params: Params, logits: Array, labels: Any) -> Array:
        return cross_entropies(logits, labels)

    seen = inspect if hasattr(network, "max_norm") else None
    return Classifier(init, apply, loss, _probe(network), seen)


def classification(
    options: Any, data: Any, model: Classifier, make: Callable[[Any, Any], Task]
) -> Task:
    """Returns the task of classifying images, or the pixels of scenes, by a model.
    ``make`` makes it again for other options."""
    spec: ImageSpec = data.spec
    network = options.network
    of_scenes = isinstance(options, SceneTaskConfig)

    def corrupt(batch: Any, trial: Trial, key: jax.Array) -> Any:
        if not (trial.augment and options.augment):
            return batch
        if of_scenes:
            return type(batch)(*flip(key, batch.images, batch.labels))
        return batch._replace(images=flip_and_shift(key, batch.images))

    def losses(params: Params, batch: Any, trial: Trial) -> Any:
        """Returns cross entropies summed over the places of a sample, how many are
        right, and figures of the solve."""
        # A solver applies a layer many times: sharded parameters are gathered once.
        pixels = to_unit(batch.images)
        logits, info = model.apply(gathered(params), pixels, trial.probe)
        return of_logits(params, logits, info, batch)

    def of_logits(params: Params, logits: Array, info: Any, batch: Any) -> Any:
        predicted = jnp.argmax(logits, axis=-1)
        matches = predicted == batch.labels.astype(predicted.dtype)
        samples = _over_places(model.loss(params, logits, batch.labels))
        figures = solve_figures(info, len(batch.images))
        right = _over_places(counted(batch.labels) & matches)
        return samples[:, None], {"right": right, **figures}

    def read(params: Params, batch: Any, trial: Trial) -> Any:
        pixels = to_unit(batch.images)
        features: Row = {}
        if model.inspect is None:
            logits, info = model.apply(params, pixels, None)
        else:
            logits, info, features = model.inspect(params, pixels)
        samples, figures = of_logits(params, logits, info, batch)
        matrix = confusion(logits, batch.labels)
        number = _over_places(counted(batch.labels))
        figures |= {"number": number, "confusion": matrix, **features}
        return {"losses": samples, **figures}

    def join(parts: Any, split: str) -> Reading:
        """Puts rows one after the other, with losses per label that counts. Confusion
        matrices are summed."""
        number = sum(np.sum(one["number"], dtype=np.float64) for one in parts)
        reading = {
            name: np.concatenate([one[name] for one in parts])
            for name in ("losses", *SOLVE, *FEATURES)
            if name in parts[0]
        }
        share = max(number, 1) / len(reading["losses"])
        reading["losses"] = reading["losses"].astype(np.float64) / share
        reading["confusion"] = np.sum([one["confusion"] for one in parts], axis=0)
        return reading

    def scores_of(reading: Reading) -> Row:
        names = [name for name in (*SOLVE, *FEATURES) if name in reading]
        means = json_numbers(np.mean(reading[name], dtype=float) for name in names)
        return {
            "loss": float(reading["losses"].mean()),
            **scores(reading["confusion"])._asdict(),
            **dict(zip(names, means, strict=True)),
        }

    def norms_of(params: Params, *, certified: bool = False) -> dict[str, float]:
        """Returns the norms of the weights, empty for a network without a bound on
        them."""
        if not hasattr(network, "max_norm"):
            return {}
        stem = len(network.stem)
        return weight_norms(params, spec.shape[:2], stem=stem, certified=certified)

    def row(params: Params, reading: Reading) -> Row:
        figures = scores_of(reading)
        if norms := norms_of(params):
            figures["weight_norms"] = json_numbers(norms.values())
            # else bounds are unused, and may take long
            if getattr(network, "norm_steps", None) is None:
                bounds = norms_of(params, certified=True)
                figures["weight_norm_bounds"] = json_numbers(bounds.values())
        return figures

    def baselines(params: Params, readings: Any) -> Row:
        reading = readings[Trial()]
        return {
            **scores_of(reading),
            "weight_norms": norms_of(params),
            "class_names": list(spec.class_names),
            "confusion": reading["confusion"].tolist(),
        }

    def keep(params: Params, folder: Path, figures: Row) -> None:
        """Writes predictions of some scenes, evenly spread over the test split."""
        last = data.num_examples("test") - 1
        numbers = np.unique(np.linspace(0, last, SHOWN).astype(int))
        shown, labels = data.read("test", numbers)
        predicted = np.argmax(see(gathered(params), shown), axis=-1).astype(np.uint8)
        write_predictions(folder, Predictions(shown, labels, predicted))

    def logits_of(params: Params, pixels: Array) -> Array:
        return model.apply(params, pixels, None)[0]

    see = on_batches(lambda params, pictures: logits_of(params, to_unit(pictures)))

    def predict(params: Params, inputs: Any) -> Any:
        """Returns the prediction of an image (a file, or a uint8 array), or of each of
        a list, scaled as the train images: a `Label`; of scenes, the class of each
        pixel, uint8, at that size.
        """
        pictures, several = pictures_of(inputs, spec.shape)
        logits = see(gathered(params), pictures)
        best = np.argmax(logits, axis=-1)
        if of_scenes:
            found: list[Any] = list(best.astype(np.uint8))
        else:
            shares = np.asarray(jax.jit(jax.nn.softmax)(logits))
            found = [
                Label(spec.class_names[int(place)], share)
                for place, share in zip(best, shares, strict=True)
            ]
        return found if several else found[0]

    def fingerprint() -> Row:
        sizes = {split: data.num_examples(split) for split in SPLITS}
        return {"examples": sizes, "mean": [float(value) for value in spec.mean]}

    def summary(evaluation: Row) -> str:
        words = OF_SCENES if of_scenes else OF_IMAGES
        shown = [f"{word} {evaluation[name]:.2%}" for name, word in words.items()]
        return ", ".join(shown)

    def reading(params: Params, split: str, trial: Trial) -> Reading:
        """Gathers sharded parameters once: a solver applies a layer many times."""
        return read_split(task._replace(reading=None), gathered(params), split, trial)

    task = Task(
        options=options,
        num_layers=0,
        init=model.init,
        batches=train_batches(data, options.batch_size),
        examples=lambda split, trial: data.examples(
            split, batch_size=options.batch_size
        ),
        losses=losses,
        make=lambda other: make(other, data),
        predict=predict,
        summary=summary,
        corrupt=corrupt,
        row=row,
        # a share of images or pixels differs by more
        best=lambda row: row[options.best_by] - 1e-9 * row["loss"],
        baselines=baselines,
        read=read,
        reading=reading,
        join=join,
        keep=keep if of_scenes else no_figures,
        counts=lambda batch: _over_places(counted(batch.labels)),
        probe=model.probe,
        summarise=_summarise,
        describe=_describe,
        num_examples=data.num_examples("train"),
        examples_are="examples",
        fingerprint=fingerprint,
        spec=spec.to_json,
        inner=Inner(data, spec, logits_of, see),
    )
    return task


def _check_network(network: Any, init: Callable[..., Any]) -> None:
    """Raises a `UserError` for a network that does not fit the data."""
    try:
        jax.eval_shape(init, jax.random.key(0))
    except (ValueError, TypeError) as error:
        name, _, rest = str(error).partition(" ")
        if hasattr(network, name):
            raise UserError(f"{option_text(f'network.{name}')} {rest}") from error
        raise UserError(f"the network does not fit the data: {error}") from error


def _probe(network: Any) -> Callable[[int], Probe] | None:
    """Returns the probe of the adjoint solve, or None for a network without one."""
    if adjoint_probe(network, 1) is None:
        return None
    return lambda rows: adjoint_probe(network, rows)  # pyright: ignore[reportReturnType]


def _summarise(figures: Any, counts: Any, probed: Any) -> Row:
    """Returns numbers of places that are right and that count, and means over examples
    of both solves."""
    summary = {"right": jnp.sum(figures["right"]), "counted": jnp.sum(counts)}
    summary |= {name: jnp.mean(figures[name]) for name in SOLVE}
    solve = [jnp.full((), jnp.nan)] * 3
    if probed is not None:
        solve = [jnp.mean(leaf) for leaf in probed]
    adjoint = {f"adjoint_{name}": one for name, one in zip(SOLVE, solve, strict=True)}
    return summary | adjoint


def _describe(figures: Any) -> tuple[Row, dict[str, str]]:
    """Returns accuracy and figures of the solves."""
    accuracy = float(figures["right"]) / max(float(figures["counted"]), 1.0)
    names = [*SOLVE, *(f"adjoint_{name}" for name in SOLVE)]
    solves = json_numbers(figures[name] for name in names)
    row = {"accuracy": accuracy, **dict(zip(names, solves, strict=True))}
    return row, {"accuracy": f"{accuracy:.1%}"}


def _over_places(values: Array) -> Float[Array, "samples"]:
    """Sums over the places of a sample. An image has one."""
    return jnp.sum(values.reshape(len(values), -1), axis=1, dtype=jnp.float32)
