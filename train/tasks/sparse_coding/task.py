"""Sparse coding: LISTA towards the Lasso's solutions, plain and under descent
constraints."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from unroll_jax.models import LISTA

from ...core.evaluate import NOISE_SEED, evaluate_trials, noise_trials, perturbation
from ...core.task import Log, NoData, Params, Reading, Row, Task, Trial, mean_last_loss
from ...data.files import SPLITS
from ...sharding import keep_rows
from ..common import (
    check_noise,
    feasibility_words,
    logged,
    loop_options,
    on_batches,
    pictures_of,
    to_bytes,
    train_batches,
    with_reference,
)
from .data import CodeBatch, CodeData, CodeSpec, load, solve_lasso, to_grey
from .options import CODES, CODES_LOSS, SparseCodingConfig

SCORE = "relative_error"
READ_TOGETHER = 1000  # images, in an evaluation: no gradient is kept, so more fit
WEIGHT_NOISE = 0.01
# Ridge penalties that the linear map is chosen among, times the number of images.
PENALTIES = tuple(10.0**power for power in range(-6, 1))

# images (n, pixels) in [0, 1] -> codes (n, atoms)
Coder = Callable[[np.ndarray], np.ndarray]


class Drawn(NamedTuple):
    """Images with noise, the codes to reach, the codes of layer 0, and a key of
    layer noise, a row an image."""

    signals: Float[Array, "batch pixels"]
    codes: Float[Array, "batch atoms"]
    start: Float[Array, "batch atoms"]
    keys: UInt32[Array, "batch 2"]


class Coded(NamedTuple):
    """The code of an image, float32 (atoms,), and the image it reconstructs, uint8
    (height, width)."""

    code: np.ndarray
    image: np.ndarray


def open_task(options: SparseCodingConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    return logged(options, make(options, load(options.data, log=log)), log)


def rebuild(options: SparseCodingConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without data, to predict."""
    return make(options, NoData(CodeSpec.from_json(spec)))


def make(options: SparseCodingConfig, data: Any) -> Task:
    """Returns the task: f_l is the mean over images of 1/2 |z_l - z*|^2, z* the Lasso's
    solution for the image without noise.

    Layer 0 is z_0: zeros, or noise. Scores are relative errors: the mean of |z_L -
    z*|^2 over the mean of |z*|^2.

    Source: Hadou, NaderiAlizadeh, Ribeiro, "Robust stochastically-descending unrolled
    networks" (2023), whose constraints are on the distance |z_l - z*|.
    """
    spec = data.spec
    norms = getattr(data, "square_norms", None)
    if norms is not None:
        loss = 0.5 * norms["train"]  # of codes that are 0
        options = with_reference(options, CODES, loss / CODES_LOSS)
    atoms, pixels = spec.dictionary.shape
    model = LISTA(
        pixels,
        atoms,
        options.model.num_layers,
        sparsity=options.data.sparsity,
        dictionary_init=jax.nn.initializers.constant(spec.dictionary),
        noise=None if options.model.weights == "ista" else WEIGHT_NOISE,
        **loop_options(options),
    )
    apply: Any = model.apply
    no_signal = jnp.zeros((1, pixels))

    def corrupt(batch: CodeBatch, trial: Trial, key: jax.Array) -> Drawn:
        of_images, of_start, of_layers = jax.random.split(key, 3)
        clean = jnp.asarray(batch.images, jnp.float32) / 255.0
        noise = jax.random.normal(of_images, clean.shape)
        codes = jnp.asarray(batch.codes)
        start = options.model.start * jax.random.normal(of_start, codes.shape)
        keys = jax.random.key_data(jax.random.split(of_layers, len(codes)))
        return Drawn(clean + trial.gamma * spec.pixel_std * noise, codes, start, keys)

    def losses(params: Params, batch: Drawn, trial: Trial) -> Any:
        def record(z: Array) -> Array:
            return 0.5 * jnp.sum((keep_rows(z) - batch.codes) ** 2, axis=-1)

        found = apply(
            params,
            keep_rows(batch.signals),
            keep_rows(batch.start),
            record=record,
            perturb=perturbation(trial, batch.keys),
        )
        return found.T, {}

    def score(reading: Reading, split: str) -> float:
        return 2.0 * mean_last_loss(reading, split) / data.square_norms[split]

    def ista() -> Params:
        """Returns parameters with which layers are steps of ISTA."""
        init = jax.jit(model.clone(noise=None).init)
        return dict(init(jax.random.key(0), no_signal))

    def baselines(params: Params, readings: Any) -> Row:
        of_ista, _ = evaluate_trials(task, ista())
        floor_errors = {"ISTA": of_ista.pop(SCORE), **floors(options, data)}
        return {
            "layer_noise": options.layer_noise,
            "floors": floor_errors,
            "floor_shares": dict.fromkeys(floor_errors, 1.0),
            **{f"ista_{name}": errors for name, errors in of_ista.items()},
        }

    def fingerprint() -> Row:
        sizes = {split: data.num_examples(split) for split in SPLITS}
        norms = data.square_norms
        return {
            "pixel_std": spec.pixel_std,
            "square_norms": norms,
            "examples": sizes,
        }

    @on_batches
    def codes_of(params: Params, batch: CodeBatch, gamma: Any, key: jax.Array) -> Array:
        drawn = corrupt(batch, Trial(gamma), key)
        return apply(params, drawn.signals, drawn.start)[-1]

    def predict(
        params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0
    ) -> Any:
        """Returns the `Coded` of an image (a file, or a uint8 array), or a list of them
        for a list. Images are converted to the size of the train images and to grey.
        Noise of a strength ``gamma`` may be added.
        """
        check_noise(gamma, seed)
        pictures, several = pictures_of(inputs, spec.shape)
        images = [to_grey(one) for one in pictures]
        batch = CodeBatch(np.stack(images), np.zeros((len(images), atoms), np.float32))
        key = jax.random.key(seed)
        estimates = np.asarray(codes_of(params, batch, np.float32(gamma), key))
        shown = to_bytes(estimates @ spec.dictionary)
        coded = [
            Coded(code, image.reshape(spec.shape[:2]))
            for code, image in zip(estimates, shown, strict=True)
        ]
        return coded if several else coded[0]

    trial = Trial(float(options.train_gamma), options.layer_noise)
    task = Task(
        options=options,
        num_layers=options.model.num_layers,
        init=lambda key: dict(model.init(key, no_signal)),
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
            Trial(trial.gamma),
            layer_noises=options.test_layer_noises,
            lost=options.model.num_layers,
        ),
        score=score,
        row=lambda params, reading: {SCORE: score(reading, "validation")},
        baselines=baselines,
        num_examples=data.num_examples("train"),
        examples_are="images",
        fingerprint=fingerprint,
        spec=spec.to_json,
        inner=ista,
    )
    return task


def summary(evaluation: Row) -> str:
    """Returns relative errors at the noise of training of the model and of ISTA, and
    feasibility."""
    gamma = str(float(evaluation["train_gamma"]))
    error = evaluation[SCORE][gamma]
    ista = evaluation["floors"]["ISTA"][gamma]
    return (
        f"relative error {error:.3f} against {ista:.3f} of ISTA at gamma {gamma},"
        f" {feasibility_words(evaluation)}"
    )


def floors(config: SparseCodingConfig, data: CodeData) -> dict[str, dict[str, float]]:
    """Relative errors on the test split at every noise level of coders that cost no
    more than the network, by name. FISTA takes as many steps as there are layers. The
    linear map is fitted by least squares at the noise of training, with the ridge
    penalty that is best on the validation split. Codes of zeros have the error 1.
    """
    coders: dict[str, Coder] = {
        "FISTA": lambda images: solve_lasso(
            images, data.spec.dictionary, config.data.sparsity, config.model.num_layers
        )[0],
        "linear map": linear_coder(data, config.train_gamma),
    }
    return {
        name: {
            str(gamma): error(coder, data, "test", gamma)
            for gamma in config.noise_levels
        }
        for name, coder in coders.items()
    }


def linear_coder(data: CodeData, gamma: float) -> Coder:
    """The affine map of images to codes with the least squares at a noise level, and
    a penalty chosen on validation."""
    # takes a second, and is needed only to evaluate
    from sklearn.linear_model import Ridge

    images, codes = noisy(data, "train", gamma)
    models = [Ridge(penalty * len(images)).fit(images, codes) for penalty in PENALTIES]
    return min(
        (model.predict for model in models),
        key=lambda coder: error(coder, data, "validation", gamma),
    )


def error(coder: Coder, data: CodeData, split: str, gamma: float) -> float:
    """The mean of |z - z*|^2 over the mean of |z*|^2, at a noise level."""
    images, codes = noisy(data, split, gamma)
    return float(
        np.sum((coder(images) - codes) ** 2, dtype=np.float64)
        / np.sum(codes**2, dtype=np.float64)
    )


def noisy(data: CodeData, split: str, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Images of a split in [0, 1] with noise, the same at every call, and their
    codes."""
    whole = data.whole(split)
    clean = np.float32(whole.images) / np.float32(255.0)
    noise: Any = np.random.default_rng(NOISE_SEED).standard_normal(
        clean.shape, np.float32
    )
    return clean + np.float32(gamma * data.spec.pixel_std) * noise, whole.codes
