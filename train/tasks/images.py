"""Images classified and scenes labelled, with an equilibrium or without: one loss, and how it was solved."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.fixed_point import EquilibriumInfo, Probe

from ..config.errors import UserError
from ..config.images import ImageTaskConfig, SceneTaskConfig, SupervisedConfig
from ..data import images
from ..data.augmentation import flip_and_crop, flip_and_shift, normalise, standardise
from ..data.pictures import picture_of
from ..data.splits import SPLITS
from ..finite import json_numbers
from ..metrics import Predictions, write_predictions
from ..optimizers import make_optimizer
from ..sharding.mesh import gathered, make_mesh
from ..sharding.parts import rematerialised
from ..task import Log, Params, PlainRisk, Row, SampleLosses, Training, Validation
from .certified import lipschitz_bound
from .common import DataTask, check_batch_size, num_parameters, on_batches
from .facts import ImageFacts
from .networks import adjoint_probe, build, sees_vectors
from .robustness import robustness
from .scores import (
    Label,
    SplitScores,
    confusion,
    counted,
    cross_entropies,
    mean_cross_entropy,
    scores,
    weight_norms,
)

SHOWN = 4  # scenes: evenly spread over the test split
# Of an equilibrium or an adjoint solve: relative residual, evaluations, whether the tolerance was met.
SOLVE = ("residual", "iterations", "converged")
WORDS = {"accuracy": "accuracy", "class_accuracy": "mAcc", "intersection_over_union": "mIoU"}


class ImageTask(DataTask[SupervisedConfig]):
    """Cross entropy in nats over what counts: classes of images, or of the pixels of scenes."""

    num_layers = 0

    def __init__(self, config: SupervisedConfig, data: Any):
        super().__init__(config, data)
        model = build(config.network, data.num_classes)
        apply: Callable[..., tuple[Array, Any]] = model.apply  # pyright: ignore[reportAssignmentType] (typed loosely)
        self._model, self._free = model, rematerialised(apply, config.remat)
        try:
            jax.eval_shape(self.init, jax.random.key(0))
        except (ValueError, TypeError) as error:
            raise UserError(_named(config.network, str(error))) from error
        check_batch_size(config.batch_size, data.num_examples("train"), "examples")
        epoch = max(data.num_examples("train") // config.batch_size, 1)
        num_steps = config.epochs * epoch
        self.training = Training(
            objective=PlainRisk(),
            optimizer=make_optimizer(config.optimizer, num_steps=num_steps, steps_an_epoch=epoch),
            num_steps=num_steps,
            validate_every=config.validate_every * epoch,
            mesh=make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate),
        )
        self._measure, self._see = on_batches(self._measured), on_batches(lambda *seen: self._logits(*seen)[0])
        self._seen: set[int] = set()

    def init(self, key: jax.Array) -> Params:
        """Parameters of the network."""
        return self._model.init(key, self._shown(jnp.zeros((1, *self.data.shape), jnp.uint8)))

    def sample_noise(self, batch: Any, key: jax.Array) -> Any:
        """Flipped, and shifted or cropped."""
        if not self.config.augment:
            return batch
        augment = flip_and_crop if isinstance(self.config, SceneTaskConfig) else flip_and_shift
        return type(batch)(*augment(key, batch.images, batch.labels))

    def counts(self, batch: Any) -> Float[Array, "samples"]:
        """Labels that count, of every sample."""
        return _over_places(counted(batch.labels))

    def probe(self, rows: int) -> Probe | None:
        """Carries the figures of the adjoint solve out of the gradient; None for a network that has no such solve."""
        return adjoint_probe(self.config.network, rows)

    def losses(self, params: Params, batch: Any, probe: Probe | None) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Cross entropy summed over the places of a sample; how many of them are right; how it was solved."""
        # A solver applies a layer many times: parameters that are stored in shares are gathered once.
        logits, info = self._logits(gathered(params), batch.images, probe)
        right = counted(batch.labels) & (jnp.argmax(logits, axis=-1) == batch.labels)
        samples = _over_places(cross_entropies(logits, batch.labels))
        return samples[:, None], {"right": _over_places(right), **_solve(info, len(batch.images))}

    def summarise(self, figures: Mapping[str, Array], counts: Array | None, probed: Any) -> Mapping[str, Array]:
        """Places that are right and that count, and means over examples of both solves."""
        summary = {"right": jnp.sum(figures["right"]), "counted": jnp.sum(jnp.asarray(counts))}
        summary |= {name: jnp.mean(figures[name]) for name in SOLVE}
        solve = [jnp.full((), jnp.nan)] * 3 if probed is None else [jnp.mean(leaf) for leaf in probed]
        return summary | {f"adjoint_{name}": value for name, value in zip(SOLVE, solve, strict=True)}

    def describe(self, figures: Mapping[str, Any]) -> tuple[Row, dict[str, str]]:
        """Accuracy and solves."""
        accuracy = float(figures["right"]) / max(float(figures["counted"]), 1.0)
        names = [*SOLVE, *(f"adjoint_{name}" for name in SOLVE)]
        solves = dict(zip(names, json_numbers(figures[name] for name in names), strict=True))
        return {"accuracy": accuracy, **solves}, {"accuracy": f"{accuracy:.1%}"}

    def split_scores(self, params: Params, split: str) -> SplitScores:
        """Loss, scores and solves of a split; compiled once for each of two batch sizes."""
        losses, matrices, solves, sizes, weights = [], [], [], [], []
        seconds = timed = 0.0
        params = gathered(params)
        for batch in self.data.examples(split, batch_size=self.config.batch_size):
            began, size = time.perf_counter(), len(batch.images)
            loss, matrix, solve = self._measure(params, batch)
            if size in self._seen:
                seconds, timed = seconds + time.perf_counter() - began, timed + size
            self._seen.add(size)
            losses.append(loss)
            matrices.append(matrix)
            solves.append([solve[name] for name in SOLVE])
            sizes.append(size)
            weights.append(int(np.sum(np.asarray(counted(batch.labels)))))
        matrix = np.sum(matrices, axis=0)
        means: Row = dict(zip(SOLVE, np.average(solves, axis=0, weights=sizes), strict=True))
        per_example = seconds / timed if timed else math.nan
        return SplitScores(float(np.average(losses, weights=weights)), scores(matrix), matrix, means, per_example)

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """Scores; the best checkpoint is best in one of them."""
        del multipliers
        reading = self.split_scores(params, "validation")
        solve = dict(zip(reading.solve, json_numbers(reading.solve.values()), strict=True))
        row = {"loss": reading.loss, **reading.scores._asdict(), **solve}
        if norms := self._norms(params):
            row["weight_norms"] = json_numbers(norms.values())
            if getattr(self.config.network, "norm_steps", None) is None:  # else they are not used, and may take long
                row["weight_norm_bounds"] = json_numbers(self._norms(params, certified=True).values())
        return Validation(np.array([[reading.loss]]), row, score=getattr(reading.scores, self.config.best_by))

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, None]:
        """Scores on the test split; of scenes, some predictions go to the folder."""
        if isinstance(self.config, SceneTaskConfig):
            write_predictions(folder, self.predictions(params))
        reading = self.split_scores(params, "test")
        figures = {
            "seed": self.config.seed,
            "num_examples": self.data.num_examples("test"),
            "loss": reading.loss,
            **reading.scores._asdict(),
            **dict(zip(reading.solve, json_numbers(reading.solve.values()), strict=True)),
            "weight_norms": self._norms(params),
            "parameters": num_parameters(params),
            "seconds_an_example": json_numbers([reading.seconds])[0],
            **robustness(self.config, self.data, self.logits, params),
            "class_names": list(self.data.class_names),
            "confusion": reading.matrix.tolist(),
        }
        return figures, None

    def predictions(self, params: Params) -> Predictions:
        """Predictions for some scenes of the test split, the same ones every time."""
        wanted = set(np.linspace(0, self.data.num_examples("test") - 1, SHOWN).astype(int).tolist())
        batches = enumerate(self.data.examples("test", batch_size=1))
        chosen = [batch for place, batch in batches if place in wanted]
        shown, labels = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
        logits = self._see(gathered(params), shown)
        return Predictions(shown, labels, np.argmax(logits, axis=-1).astype(np.uint8))

    def data_fingerprint(self) -> Row:
        """Returns the number of examples of each split, and the mean pixel."""
        sizes = {split: self.data.num_examples(split) for split in SPLITS}
        return {"examples": sizes, "mean": [float(value) for value in self.data.mean]}

    def model_spec(self) -> Row:
        """Shape, statistics of pixels, and names of classes."""
        data = self.data
        statistics = {name: [float(value) for value in getattr(data, name)] for name in ("mean", "std")}
        return {"shape": list(data.shape), "class_names": list(data.class_names), **statistics}

    def predict(self, params: Params, inputs: Any) -> Any:
        """Returns the `Label` of each image (files, or uint8 arrays); of scenes the class of each pixel, uint8.

        Images are brought to the size and channels that the network was trained on; a map of classes is of that size.
        """
        several = isinstance(inputs, list | tuple)
        if several and not inputs:
            raise UserError("predict needs images, got an empty list")
        shown = np.stack([picture_of(one, self.data.shape) for one in (inputs if several else [inputs])])
        logits = self._see(gathered(params), shown)
        predictions: list[Any] = list(np.argmax(logits, axis=-1).astype(np.uint8))
        if not isinstance(self.config, SceneTaskConfig):
            names, shares = self.data.class_names, np.asarray(jax.nn.softmax(logits))
            predictions = [Label(names[int(best)], share) for best, share in zip(predictions, shares, strict=True)]
        return predictions if several else predictions[0]

    def summary_line(self, evaluation: Row) -> str:
        """The scores."""
        names = reversed(WORDS) if isinstance(self.config, SceneTaskConfig) else ("accuracy",)
        words = WORDS | ({"accuracy": "aAcc"} if isinstance(self.config, SceneTaskConfig) else {})
        return ", ".join(f"{words[name]} {evaluation[name]:.2%}" for name in names)

    def logits(self, params: Params, pixels: Array) -> Array:
        """Returns the logits of pixels in unit scale, (batch, height, width, channels)."""
        return self._apply(params, self._flat(standardise(pixels, self.data.mean, self.data.std)))[0]

    def _apply(self, params: Params, seen: Array, **options: Any) -> tuple[Array, Any]:
        """Logits, scaled down to the Lipschitz constant that they are held to; and how they were solved."""
        logits, info = self._free(params, seen, **options)
        held = self.config.lipschitz if isinstance(self.config, ImageTaskConfig) else None
        if held is not None:
            bound = lipschitz_bound(self.config.network, params, self.data.shape[:2], self.data.std)
            logits = logits * jnp.minimum(1.0, held / bound)
        return logits, info

    def _shown(self, pictures: Array) -> Array:
        """Returns the network's input for images."""
        return self._flat(normalise(pictures, self.data.mean, self.data.std))

    def _flat(self, pixels: Array) -> Array:
        return pixels.reshape(len(pixels), -1) if sees_vectors(self.config.network) else pixels

    def _logits(self, params: Params, pictures: Any, probe: Probe | None = None) -> tuple[Array, Any]:
        options = {} if probe is None else {"probe": probe}
        return self._apply(params, self._shown(pictures), **options)

    def _measured(self, params: Params, batch: Any) -> tuple[Array, Array, Mapping[str, Array]]:
        """Cross entropy, confusion matrix, and means of how it was solved."""
        logits, info = self._logits(params, batch.images)
        solve = {name: jnp.mean(rows) for name, rows in _solve(info, len(batch.images)).items()}
        return mean_cross_entropy(logits, batch.labels), confusion(logits, batch.labels), solve

    def _norms(self, params: Params, *, certified: bool = False) -> dict[str, float]:
        """Returns the norms of the weights; empty for a network without a bound on them."""
        network = self.config.network
        if not hasattr(network, "max_norm"):
            return {}
        return weight_norms(params, self.data.shape[:2], stem=len(network.stem), certified=certified)


def open_images(config: SupervisedConfig, log: Log) -> ImageTask:
    """The task on the data of its configuration."""
    data: Any = images.load(config.data, log=log)
    if config.train_examples is not None:
        try:
            data.keep("train", config.train_examples)
        except ValueError as error:
            raise UserError(f"--train-examples does not fit the data: {error}") from error
    return ImageTask(config, data)


def images_of(config: SupervisedConfig, facts: Row) -> ImageTask:
    """The task that `ImageTask.model_spec` describes, without its data."""
    height, width, channels = facts["shape"]
    mean, std = (np.array(facts[name], np.float32) for name in ("mean", "std"))
    return ImageTask(config, ImageFacts((height, width, channels), tuple(facts["class_names"]), mean, std))


def _named(network: Any, error: str) -> str:
    """The error of a module in the words of the command line: its options are the module's attributes."""
    name = error.split(maxsplit=1)[0]
    if name in {field.name for field in dataclasses.fields(network)}:
        return f"--network.{name.replace('_', '-')}{error.removeprefix(name)}"
    return f"the network does not fit the data: {error}"


def _over_places(values: Array) -> Float[Array, "samples"]:
    """Sums over the places of a sample, of which an image has one."""
    return jnp.sum(values.reshape(len(values), -1), axis=1, dtype=jnp.float32)


def _solve(info: EquilibriumInfo | None, size: int) -> dict[str, Array]:
    """Returns statistics of the equilibrium solve of every sample; NaN where there is none."""
    values = [jnp.nan] * 3 if info is None else [info.residual, info.steps, info.converged]
    return {
        name: jnp.broadcast_to(jnp.asarray(value, jnp.float32), (size,))
        for name, value in zip(SOLVE, values, strict=True)
    }
