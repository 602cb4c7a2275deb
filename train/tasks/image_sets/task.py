"""Denoising of sets of images: the unrolled transformer, whose tokens are images
that attend to each other."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8, UInt32

from unroll_jax.models import cosine_bases

from ...config.options import with_value
from ...core.evaluate import noise_trials, perturbation
from ...core.task import Log, NoData, Params, Row, Task, Trial
from ...data.files import SPLITS
from ...sharding import keep_rows
from ..common import (
    add_noise,
    check_noise,
    check_reference,
    feasibility_words,
    keyed,
    logged,
    loop_options,
    on_batches,
    pictures_of,
    to_bytes,
    to_unit,
    train_batches,
    unrolled_transformer,
    with_reference,
)
from ..floors import LINEAR, ClassGaussians, LinearLayer, fit_linear
from .data import SetData, SetSpec, load
from .options import BOUNDS, INPUT_LOSS, ImageSetConfig

SCORE = "half_squared_error"
READ_TOGETHER = 250  # sets, in an evaluation: no gradient is kept, so more fit
MEAN, MIXTURE = "mean of the set", "Gaussian of each class"
# of the Gaussians' variances, of pixels in [0, 1], chosen on validation
RIDGES = (1e-4, 1e-3, 3e-3, 1e-2)

Sets = Float[Array, "batch tokens pixels"]


class Noisy(NamedTuple):
    """Sets of images in [0, 1], the same with noise, and a key of layer noise for
    each."""

    clean: Sets
    noisy: Sets
    keys: UInt32[Array, "batch 2"]


def in_proportion(config: ImageSetConfig, spec: SetSpec) -> ImageSetConfig:
    """Returns the configuration with default bounds, which are of digits, in
    proportion to the input's loss."""
    loss = 0.5 * spec.size**2 * config.train_gamma * spec.pixel_std
    share = loss / INPUT_LOSS
    scaled = with_reference(config, BOUNDS.reference, share)
    if scaled is config or config.constraints.floor != BOUNDS.floor:
        return scaled
    return with_value(scaled, "constraints.floor", share * BOUNDS.floor)


def open_task(options: ImageSetConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    return logged(options, make(options, load(options.data, log=log)), log)


def rebuild(options: ImageSetConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without data, to predict."""
    return make(options, NoData(SetSpec.from_json(spec)))


def make(options: ImageSetConfig, data: Any) -> Task:
    """Returns the task: f_l is the mean over sets and images of 1/2 |x_t - Phi_l,t|^2,
    pixels in [0, 1]. Layer 0 is the noisy input.

    Source: the model of Porras-Valenzuela, Hadou, Ribeiro, eqs. 47 and 48.
    """
    spec = data.spec
    options = in_proportion(options, spec)
    pixels, dtype = spec.size**2, jnp.promote_types(options.model.dtype, jnp.float32)
    variance = options.train_gamma * spec.pixel_std
    check_reference(options, 0.5 * pixels * variance)
    model = unrolled_transformer(
        options.model,
        pixels,
        param_dtype=dtype,
        self_loops=options.model.self_loops,
        **loop_options(options),
    )

    apply: Any = model.apply

    def corrupt(
        batch: UInt8[Array, "batch tokens pixels"], trial: Trial, key: jax.Array
    ) -> Noisy:
        of_images, of_layers = jax.random.split(key)
        clean = to_unit(batch, dtype)
        noisy = add_noise(clean, trial.gamma * spec.pixel_std, of_images)
        keys = jax.random.key_data(jax.random.split(of_layers, len(batch)))
        return Noisy(clean, noisy, keys)

    def losses(params: Params, batch: Noisy, trial: Trial) -> Any:
        def record(y: Array) -> Array:
            squares = jnp.sum((keep_rows(y) - batch.clean) ** 2, axis=-1)
            return 0.5 * jnp.mean(squares, axis=-1)

        found = apply(
            params,
            keep_rows(batch.noisy),
            record=record,
            perturb=perturbation(trial, batch.keys),
        )
        return found.T, {}

    def baselines(params: Params, readings: Any) -> Row:
        inputs = {
            label: float(np.mean(readings[trial]["losses"][:, 0], dtype=np.float64))
            for label, trial in task.trials[SCORE].items()
        }
        tested = tuple(
            (str(gamma), gamma * spec.pixel_std) for gamma in options.noise_levels
        )
        found = floors(data, variance, tested)
        return {f"noisy_{SCORE}": inputs, "floors": found}

    def fingerprint() -> Row:
        return {
            "pixel_std": spec.pixel_std,
            "class_names": list(spec.class_names),
            "images": {split: data.num_images(split) for split in SPLITS},
        }

    @on_batches
    def denoised(params: Params, batch: Any, gamma: Any, key: jax.Array) -> Array:
        return apply(params, corrupt(batch, Trial(gamma), key).noisy)[-1]

    def predict(
        params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0
    ) -> np.ndarray:
        """Returns a set of images without its noise: uint8 (images, size, size), for a
        list of files or uint8 arrays. Images are converted to the size of the train
        images and to grey. Noise of a strength ``gamma`` may be added.
        """
        check_noise(gamma, seed)
        shape = (spec.size, spec.size, 1)
        pictures, _ = pictures_of(inputs, shape)
        given = pictures.reshape(1, len(pictures), -1)
        clean = denoised(params, given, gamma, jax.random.key(seed))
        return to_bytes(np.asarray(clean[0])).reshape(-1, *shape[:2])

    trial = Trial(float(options.train_gamma))
    turned = options.primal.basis == "cosine" and options.primal.name != "muon"
    images = data.num_images("train") if hasattr(data, "num_images") else 0
    task = Task(
        options=options,
        num_layers=options.model.num_layers,
        # the same for every key
        init=lambda key: dict(model.init(key, jnp.zeros((1, 1, pixels)))),
        batches=train_batches(data, options.batch_size),
        examples=lambda split, trial: data.examples(split, batch_size=READ_TOGETHER),
        losses=losses,
        make=lambda other: make(other, data),
        predict=predict,
        summary=summary,
        corrupt=corrupt,
        trial=trial,
        trials=noise_trials(
            SCORE,
            options.noise_levels,
            trial,
            layer_noises=options.test_layer_noises,
            lost=options.model.num_layers,
        ),
        baselines=baselines,
        bases=cosine_bases(pixels) if turned else None,
        # sets that have about every image once
        epoch=images // options.data.set_size or None,
        fingerprint=fingerprint,
        spec=spec.to_json,
    )
    return task


def summary(evaluation: Row) -> str:
    """Returns the loss at the noise of training, of the input and of the linear layer,
    and feasibility."""
    gamma = str(float(evaluation["train_gamma"]))
    error = evaluation[SCORE][gamma]
    noisy = evaluation[f"noisy_{SCORE}"][gamma]
    linear = evaluation["floors"][LINEAR][gamma]
    return (
        f"half squared error {error:.3f} against {noisy:.3f} of its input and"
        f" {linear:.3f} of one linear layer at gamma {gamma},"
        f" {feasibility_words(evaluation)}"
    )


@functools.lru_cache(maxsize=1)  # the runs of one command are judged by the same
def floors(
    data: SetData, trained: float, tested: tuple[tuple[str, float], ...]
) -> dict[str, dict[str, float]]:
    """Half squared errors on the test split, under noise of the variances ``tested``,
    without a network. The linear layer is fitted for the variance ``trained``. The
    mixture of Gaussians knows the variance of each test.
    """
    layer = fit_linear(data.examples("train", batch_size=READ_TOGETHER), trained)
    classes = [images / 255.0 for images in data.by_class("train")]
    mixtures = [ClassGaussians.fit(classes, ridge) for ridge in RIDGES]

    def of_images(mixture):
        return lambda noisy, s: mixture(noisy.reshape(-1, noisy.shape[-1]), s).reshape(
            noisy.shape
        )

    mixture = min(
        map(of_images, mixtures),
        key=lambda one: _error(one, data, "validation", trained),
    )
    denoisers: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
        LINEAR: lambda noisy, _: np.asarray(_linear(layer, noisy)),
        MEAN: lambda noisy, _: noisy.mean(axis=1, keepdims=True),
        MIXTURE: mixture,
    }
    return {
        name: {label: _error(one, data, "test", variance) for label, variance in tested}
        for name, one in denoisers.items()
    }


def _error(
    denoise: Callable[[np.ndarray, float], np.ndarray],
    data: SetData,
    split: str,
    variance: float,
) -> float:
    """Half the squared error of an image, under the noise of the networks'
    evaluation."""
    errors = []
    for batch, key in keyed(data.examples(split, batch_size=READ_TOGETHER)):
        clean, noisy = map(np.asarray, _noisy(batch, variance, key))
        squares = np.sum((denoise(noisy, variance) - clean) ** 2, axis=-1)
        errors.append(0.5 * squares.reshape(-1))
    return float(np.mean(np.concatenate(errors), dtype=np.float64))


_linear = jax.jit(LinearLayer.__call__)


@jax.jit
def _noisy(batch: Array, variance: Any, key: jax.Array) -> tuple[Array, Array]:
    clean = to_unit(batch)
    return clean, add_noise(clean, variance, jax.random.split(key)[0])
