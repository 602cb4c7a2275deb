r"""Models of video denoising, and floors: a linear layer and a classical denoiser."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.models import DUST, ViT, ViTConfig, cosine_bases, dictionary_bases

from ...config.errors import UserError, option_text
from ...core.task import Log, Params, Row
from ...data.pretrained.vision import PretrainedViT, load_vit
from ..common import (
    ATTENTION_SCALE,
    START,
    add_noise,
    loop_options,
    to_unit,
    unrolled_transformer,
)
from ..floors import LINEAR, LinearLayer, fit_linear
from .data import BATCH_SIZE, VideoSpec, frames_from, keyed_batches
from .options import DustOptions, ModelConfig, VideoRunConfig, ViTOptions

CLASSICAL = "total variation"
# At most so many patches a side and windows for the classical denoiser: 1 s per noise
# level. All of UCSD Ped2 takes 11.
MOST_WINDOWS, MOST_PATCHES, PLACES_SEED = 20, 5, 0
# Weight of total variation over the noise's standard deviation, and iterations: chosen
# on validation frames of the built-in clips and of UCSD Ped2, of 0.3 to 2 and 10 to
# 200, and the same for every data set and noise level.
TV_WEIGHT, TV_ITERATIONS = 0.8, 20


class VideoModel(NamedTuple):
    """A model of patches. Every layer is read as the clean ones. If ``of_frames``,
    samples are frames and tokens their patches. Else tokens are one position's frames.
    Adam's steps in ``bases`` change no brightness. None: no bases.
    """

    module: nn.Module
    num_layers: int
    init: Callable[[jax.Array], Params]
    bases: Any = None
    of_frames: bool = False
    reads_input: bool = False  # layer 0 is the input itself


def load_pretrained(
    config: VideoRunConfig, spec: VideoSpec, log: Log
) -> PretrainedViT | None:
    """Reads the vision transformer that a configuration names, or None if it names
    none."""
    source = getattr(config.model, "pretrained", None)
    if source is None:
        return None
    found = load_vit(
        source,
        jax.random.key(config.seed),
        grey=True,
        num_patches=spec.frame_side**2 // spec.token_dim,
        option="--model.pretrained",
        log=log,
    )
    if found.config.pixels != spec.token_dim:
        raise UserError(
            f"{option_text('model.pretrained', source)} has patches of"
            f" {found.config.pixels} pixels; give one of {spec.token_dim}"
        )
    return found


def build_video_model(
    config: VideoRunConfig,
    spec: VideoSpec,
    param_dtype: Any,
    pretrained: PretrainedViT | None = None,
) -> VideoModel:
    """Builds the model of a configuration, or the one that is given."""
    model, dim, loop, tokens = (
        config.model,
        spec.token_dim,
        loop_options(config),
        spec.num_tokens,
    )
    options, dtype = dataclasses.asdict(model), jnp.dtype(model.dtype)
    del options["dtype"]
    options.pop("pretrained", None)
    num_layers = model.num_layers
    of_input, of_frames = isinstance(model, ModelConfig), isinstance(model, ViTOptions)
    if isinstance(model, ViTOptions):
        tokens = spec.frame_side**2 // dim
        vit = ViTConfig(tokens, dim, **options)
        if pretrained is not None:
            vit = pretrained.config
            num_layers = vit.num_layers
        module: nn.Module = ViT(vit, dtype=dtype, **loop)
    elif isinstance(model, DustOptions):
        options |= {
            "attention_scale": ATTENTION_SCALE,
            "dtype": dtype,
            "param_dtype": param_dtype,
            **loop,
        }
        module = DUST(dim=dim, **options)
    else:
        options = {"self_loops": model.self_loops, "param_dtype": param_dtype, **loop}
        module = unrolled_transformer(model, dim, **START, **options)

    def init(key: jax.Array) -> Params:
        # a prediction has the configuration, and loads the run's parameters
        if pretrained is not None and pretrained.params:
            return {"params": jax.tree.map(jnp.asarray, pretrained.params)}
        return dict(module.init(key, jnp.zeros((1, tokens, dim))))

    bases = (
        None if of_frames else cosine_bases(dim) if of_input else dictionary_bases(dim)
    )
    return VideoModel(module, num_layers, init, bases, of_frames, reads_input=of_input)


def total_variation(
    noisy: Float[np.ndarray, "frames height width"], deviation: float
) -> np.ndarray:
    """Frames without noise of a known standard deviation, by total variation in space
    and time together.

    Source: Rudin, Osher, Fatemi, 1992, by the iteration of Chambolle, 2004, from
    scikit-image.
    """
    if deviation == 0.0:
        return noisy
    # takes half a second, and is needed only to evaluate
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(
        noisy, weight=TV_WEIGHT * deviation, eps=0.0, max_num_iter=TV_ITERATIONS
    )


# the plain and the constrained run of one command are judged by the same
@functools.lru_cache(maxsize=1)
def floors(data: Any, train_gamma: float, gammas: tuple[float, ...]) -> Row:
    """RMSE of both floors on the test split (0-255 scale) by gamma, under the noise of
    models; and shares of it. The linear layer is fitted for ``train_gamma`` on the
    train split.
    """
    layer = fit_linear(
        data.examples("train", batch_size=BATCH_SIZE), train_gamma * data.spec.pixel_std
    )
    patches, side = (
        data.spec.frame_side // math.isqrt(data.spec.token_dim),
        math.isqrt(data.spec.token_dim),
    )
    chosen = some_squares(data.num_examples("test"), patches)
    rmse = {
        gamma: _rmse(data, layer, chosen, side, gamma * data.spec.pixel_std)
        for gamma in gammas
    }
    return {
        "floors": {
            name: {str(gamma): both[name] for gamma, both in rmse.items()}
            for name in (LINEAR, CLASSICAL)
        },
        "floor_shares": {
            LINEAR: 1.0,
            CLASSICAL: chosen.size / data.num_examples("test"),
        },
    }


def some_squares(num_sequences: int, patches: int) -> np.ndarray:
    """The numbers of the sequences of squares, one a window, in the order of
    `patch_sequences`: (windows, positions). Windows are evenly spaced. Squares tile the
    frame. Every tile is taken as often as others, but for one time, in an order that is
    drawn: before a fixed camera places differ most, before a moving one windows, often
    in a cycle.
    """
    count, side = num_sequences // patches**2, min(patches, MOST_PATCHES)
    windows = np.linspace(0, count - 1, min(count, MOST_WINDOWS)).round().astype(int)
    tiles = (
        np.random.default_rng(PLACES_SEED).permutation(len(windows))
        % (patches // side) ** 2
    )
    corners = side * np.stack(np.divmod(tiles, patches // side))
    row, column = corners[..., None] + np.indices((side, side)).reshape(2, 1, -1)
    return windows[:, None] * patches**2 + row * patches + column


def _rmse(
    data: Any, layer: LinearLayer, chosen: np.ndarray, side: int, variance: float
) -> dict[str, float]:
    """Returns the RMSE of both floors on the test split, in one pass over its
    batches."""
    errors, kept, first = [], [], 0
    for batch, key in keyed_batches(data, "test"):
        *pixels, squares = _noisy(layer, batch, variance, key)
        errors.append(np.asarray(squares, np.float64))
        rows = np.flatnonzero(np.isin(chosen, np.arange(first, first + len(batch))))
        kept.append([np.asarray(each)[chosen.flat[rows] - first] for each in pixels])
        first += len(batch)
    clean, noisy = (
        np.concatenate(parts).reshape(*chosen.shape, data.spec.num_tokens, side**2)
        for parts in zip(*kept, strict=True)
    )
    squares = [
        np.square(total_variation(one, math.sqrt(variance)) - other).mean(
            dtype=np.float64
        )
        for one, other in zip(_frames(noisy, side), _frames(clean, side), strict=True)
    ]
    return {
        LINEAR: _on_bytes(np.concatenate(errors)),
        CLASSICAL: _on_bytes(np.asarray(squares)),
    }


@jax.jit
def _noisy(
    layer: LinearLayer, batch: Array, variance: float, key: Array
) -> tuple[Array, Array, Array]:
    """Clean and noisy pixels, and the mean squared error of the layer on every
    sequence."""
    clean = to_unit(batch)
    noisy = add_noise(clean, variance, key)
    return clean, noisy, jnp.mean((layer(noisy) - clean) ** 2, axis=(1, 2))


def _frames(squares: np.ndarray, side: int) -> Iterator[np.ndarray]:
    """The frames of every square, whose patches have ``side`` pixels a side."""
    pixels = math.isqrt(squares.shape[1]) * side
    return (
        frames_from(sequences, (pixels, pixels), side=side) for sequences in squares
    )


def _on_bytes(squares: np.ndarray) -> float:
    return 255.0 * math.sqrt(squares.mean())
