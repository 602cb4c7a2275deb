"""Classification of images and of the pixels of scenes, by networks with an
equilibrium or without."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.fixed_point import Probe

from ..config.errors import UserError, option_text
from ..config.images import ImageTaskConfig, SupervisedConfig
from ..core.numbers import json_numbers
from ..core.task import Log, Params, Row, SampleLosses
from ..data import images
from ..data.files import SPLITS
from ..data.pictures import ImageSpec, PictureData, picture_of
from ..data.reader import keep_examples
from ..metrics import Predictions, write_predictions
from ..sharding.mesh import gathered
from ..sharding.rules import rematerialised
from ..task import Training
from .common import DataTask, on_batches
from .image_models import (
    SOLVE,
    Label,
    adjoint_probe,
    build,
    confusion,
    counted,
    cross_entropies,
    flip,
    flip_and_shift,
    lipschitz_bound,
    mean_cross_entropy,
    scores,
    sees_vectors,
    solve_figures,
    standardise,
    weight_norms,
)
from .networks import each_of

SHOWN = 4  # scenes: evenly spread over the test split


class ImageTask(DataTask[SupervisedConfig]):
    """Classification of images by cross entropy in nats; `SceneTask` classifies
    their pixels."""

    num_layers, spec_type = 0, ImageSpec
    words: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy"}
    """Names of scores in `summary_line`."""

    @staticmethod
    def _load(config: SupervisedConfig, log: Log) -> PictureData:
        data = images.load(config.data, log=log)
        keep_examples(data, config)
        return data

    def __init__(
        self, config: SupervisedConfig, data: Any, spec: ImageSpec | None = None
    ):
        super().__init__(config, data, spec)
        model = build(config.network, self.spec.num_classes)
        apply: Callable[..., tuple[Array, Any]] = model.apply  # pyright: ignore[reportAssignmentType] (typed loosely)
        self._model, self._free = model, rematerialised(apply, config.remat)
        try:
            jax.eval_shape(self.init, jax.random.key(0))
        except (ValueError, TypeError) as error:
            name, _, rest = str(error).partition(" ")
            if hasattr(config.network, name):
                raise UserError(f"{option_text(f'network.{name}')} {rest}") from error
            raise UserError(f"the network does not fit the data: {error}") from error
        count = None if data is None else data.num_examples("train")
        self.training = Training(count, "examples")
        self._measure, self._see = (
            on_batches(self._measured),
            on_batches(lambda *inputs: self._logits(*inputs)[0]),
        )

    def init(self, key: jax.Array) -> Params:
        """Returns parameters of the network."""
        return self._model.init(
            key, self._shown(jnp.zeros((1, *self.spec.shape), jnp.uint8))
        )

    def sample_noise(self, batch: Any, key: jax.Array) -> Any:
        """Flips and shifts images if the options say so."""
        return (
            type(batch)(*self.augmented(key, batch.images, batch.labels))
            if self.config.augment
            else batch
        )

    def augmented(
        self, key: jax.Array, images: Array, labels: Array
    ) -> tuple[Array, Array]:
        """Returns augmented images and labels."""
        return flip_and_shift(key, images), labels

    def counts(self, batch: Any) -> Float[Array, "samples"]:
        """Returns the number of labels that count in every sample."""
        return _over_places(counted(batch.labels))

    def probe(self, rows: int) -> Probe | None:
        """Returns the probe of the adjoint solve; None for a network without one."""
        return adjoint_probe(self.config.network, rows)

    def losses(
        self, params: Params, batch: Any, probe: Probe | None
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns cross entropies summed over the places of a sample; how many are
        right, and figures of the solve."""
        # A solver applies a layer many times: sharded parameters are gathered once.
        logits, info = self._logits(gathered(params), batch.images, probe)
        predicted = jnp.argmax(logits, axis=-1)
        matches = predicted == batch.labels.astype(predicted.dtype)
        right = counted(batch.labels) & matches
        samples = _over_places(cross_entropies(logits, batch.labels))
        return samples[:, None], {
            "right": _over_places(right),
            **solve_figures(info, len(batch.images)),
        }

    def summarise(
        self, figures: Mapping[str, Array], counts: Array | None, probed: Any
    ) -> Mapping[str, Array]:
        """Returns numbers of places that are right and that count, and means over
        examples of both solves."""
        summary = {
            "right": jnp.sum(figures["right"]),
            "counted": jnp.sum(jnp.asarray(counts)),
        }
        summary |= {name: jnp.mean(figures[name]) for name in SOLVE}
        solve = (
            [jnp.full((), jnp.nan)] * 3
            if probed is None
            else [jnp.mean(leaf) for leaf in probed]
        )
        return summary | {
            f"adjoint_{name}": value for name, value in zip(SOLVE, solve, strict=True)
        }

    def describe(self, figures: Mapping[str, Any]) -> tuple[Row, dict[str, str]]:
        """Returns accuracy and figures of the solves."""
        accuracy = float(figures["right"]) / max(float(figures["counted"]), 1.0)
        names = [*SOLVE, *(f"adjoint_{name}" for name in SOLVE)]
        solves = dict(
            zip(names, json_numbers(figures[name] for name in names), strict=True)
        )
        return {"accuracy": accuracy, **solves}, {"accuracy": f"{accuracy:.1%}"}

    def split_scores(self, params: Params, split: str) -> tuple[Row, np.ndarray]:
        """Returns loss, scores and figures of the solves on a split, and its
        confusion matrix (label, prediction)."""
        readings = []
        params = gathered(params)
        for batch in self.data.examples(split, batch_size=self.config.batch_size):
            loss, matrix, solve = self._measure(params, batch)
            weight = int(np.sum(np.asarray(counted(batch.labels))))
            readings.append(
                (
                    loss,
                    matrix,
                    [solve[name] for name in SOLVE],
                    len(batch.images),
                    weight,
                )
            )
        losses, matrices, solves, sizes, weights = zip(*readings, strict=True)
        matrix = np.sum(matrices, axis=0)
        means = zip(
            SOLVE, json_numbers(np.average(solves, axis=0, weights=sizes)), strict=True
        )
        return {
            "loss": float(np.average(losses, weights=weights)),
            **scores(matrix)._asdict(),
            **dict(means),
        }, matrix

    def validation_row(self, params: Params, row: Row) -> Row:
        """Returns the scores of a validation with norms of weights."""
        if norms := self._norms(params):
            row["weight_norms"] = json_numbers(norms.values())
            # else bounds are unused, and may take long
            if getattr(self.config.network, "norm_steps", None) is None:
                row["weight_norm_bounds"] = json_numbers(
                    self._norms(params, certified=True).values()
                )
        return row

    def keep(self, params: Params, folder: Path) -> None:
        """Writes no further files."""

    def figures(self, params: Params, row: Row, matrix: np.ndarray) -> Row:
        """Returns the figures of an evaluation."""
        return {
            "num_examples": self.data.num_examples("test"),
            **row,
            "weight_norms": self._norms(params),
            "class_names": list(self.spec.class_names),
            "confusion": matrix.tolist(),
        }

    def data_fingerprint(self) -> Row:
        """Returns sizes of the splits, and the mean pixel."""
        sizes = {split: self.data.num_examples(split) for split in SPLITS}
        return {"examples": sizes, "mean": [float(value) for value in self.spec.mean]}

    def predict(self, params: Params, inputs: Any) -> Any:
        """Returns the prediction of an image (a file, or a uint8 array), or of each of
        a list, scaled as the train images: a `Label`; of scenes, the class of each
        pixel, uint8, at that size.
        """
        given, several = each_of(inputs)
        pictures = np.stack([picture_of(one, self.spec.shape) for one in given])
        predictions = self.predictions_of(self._see(gathered(params), pictures))
        return predictions if several else predictions[0]

    def predictions_of(self, logits: np.ndarray) -> list[Any]:
        """Returns the prediction of each image from its logits."""
        best, shares = np.argmax(logits, axis=-1), np.asarray(jax.nn.softmax(logits))
        return [
            Label(self.spec.class_names[int(place)], share)
            for place, share in zip(best, shares, strict=True)
        ]

    def summary_line(self, evaluation: Row) -> str:
        """The scores."""
        return ", ".join(
            f"{word} {evaluation[name]:.2%}" for name, word in self.words.items()
        )

    def logits(self, params: Params, pixels: Array) -> Array:
        """Returns the logits of pixels in unit scale, (batch, height, width,
        channels)."""
        return self._apply(
            params, self._flat(standardise(pixels, self.spec.mean, self.spec.std))
        )[0]

    def _apply(self, params: Params, seen: Array, **options: Any) -> tuple[Array, Any]:
        """Returns logits, scaled down to meet a Lipschitz constant if the options have
        one; and figures of the solve.
        """
        logits, info = self._free(params, seen, **options)
        limit = self.lipschitz
        if limit is not None:
            bound = lipschitz_bound(
                self.config.network, params, self.spec.shape[:2], self.spec.std
            )
            logits = logits * jnp.minimum(1.0, limit / bound)
        return logits, info

    @property
    def lipschitz(self) -> float | None:
        """The largest Lipschitz constant of the logits; None for no limit."""
        return (
            self.config.lipschitz if isinstance(self.config, ImageTaskConfig) else None
        )

    def _shown(self, pictures: Array) -> Array:
        """Returns the network's input for images."""
        return self._flat(
            standardise(
                pictures.astype(jnp.float32) / 255.0, self.spec.mean, self.spec.std
            )
        )

    def _flat(self, pixels: Array) -> Array:
        return (
            pixels.reshape(len(pixels), -1)
            if sees_vectors(self.config.network)
            else pixels
        )

    def _logits(
        self, params: Params, pictures: Any, probe: Probe | None = None
    ) -> tuple[Array, Any]:
        options = {} if probe is None else {"probe": probe}
        return self._apply(params, self._shown(pictures), **options)

    def _measured(
        self, params: Params, batch: Any
    ) -> tuple[Array, Array, Mapping[str, Array]]:
        """Returns cross entropy, confusion matrix, and means of the figures of the
        solve."""
        logits, info = self._logits(params, batch.images)
        solve = {
            name: jnp.mean(rows)
            for name, rows in solve_figures(info, len(batch.images)).items()
        }
        return (
            mean_cross_entropy(logits, batch.labels),
            confusion(logits, batch.labels),
            solve,
        )

    def _norms(self, params: Params, *, certified: bool = False) -> dict[str, float]:
        """Returns the norms of the weights; empty for a network without a bound on
        them."""
        network = self.config.network
        if not hasattr(network, "max_norm"):
            return {}
        return weight_norms(
            params, self.spec.shape[:2], stem=len(network.stem), certified=certified
        )


class SceneTask(ImageTask):
    """Classification of the pixels of scenes; some predictions on the test split are
    kept in the run folder."""

    words: ClassVar[Mapping[str, str]] = {
        "intersection_over_union": "mIoU",
        "class_accuracy": "mAcc",
        "accuracy": "aAcc",
    }

    def augmented(
        self, key: jax.Array, images: Array, labels: Array
    ) -> tuple[Array, Array]:
        """Returns flipped scenes and labels."""
        return flip(key, images, labels)

    def keep(self, params: Params, folder: Path) -> None:
        """Writes some predictions on the test split."""
        write_predictions(folder, self.predictions(params))

    def predictions_of(self, logits: np.ndarray) -> list[Any]:
        """Returns the class of each pixel."""
        return list(np.argmax(logits, axis=-1).astype(np.uint8))

    def predictions(self, params: Params) -> Predictions:
        """Returns predictions of scenes of the test split, evenly spread."""
        numbers = np.linspace(0, self.data.num_examples("test") - 1, SHOWN).astype(int)
        shown, labels = self.data.read("test", np.unique(numbers))
        logits = self._see(gathered(params), shown)
        return Predictions(shown, labels, np.argmax(logits, axis=-1).astype(np.uint8))


def _over_places(values: Array) -> Float[Array, "samples"]:
    """Sums over the places of a sample; an image has one."""
    return jnp.sum(values.reshape(len(values), -1), axis=1, dtype=jnp.float32)
