"""Classifiers and segmenters given what they cannot take: by the words of the error, the models or the inputs."""

import jax
import numpy as np
import pytest

from unroll_jax import fixed_point as fp
from unroll_jax.models import (
    BehindStem,
    DeepOptEq,
    DeepOptEqSegmenter,
    FeedForwardNetwork,
    FullyConvolutionalNetwork,
    MonotoneOperatorNetwork,
    NeuralODE,
)

VECTORS, IMAGES = (2, 4), (2, 4, 4, 1)
DENSE = {
    DeepOptEq: {"channels": 4, "widths": (4, 4)},
    MonotoneOperatorNetwork: {"channels": 4},
    FeedForwardNetwork: {},
    NeuralODE: {},
    FullyConvolutionalNetwork: {"widths": (4, 3), "stem": (3, 5)},
    DeepOptEqSegmenter: {"channels": 4, "widths": (4, 3), "stem": (3, 5)},
}
ON_IMAGES = (FullyConvolutionalNetwork, DeepOptEqSegmenter)
AVERAGED = {"way": "averaged", "regulariser": "half_square"}
# By model: options and the words of their error, on vectors, or on images where the model is convolutional.
BAD_OPTIONS = {
    DeepOptEq: [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"features": 0}, "features must be at least 1"),
        ({"channels": 0}, "channels must be at least 1"),
        ({"widths": ()}, "widths must name at least one layer"),
        ({"widths": (4, 0)}, "widths must be at least 1, got 0"),
        ({"num_steps": 0, "way": "unrolled"}, "num_steps must be at least 1"),
        ({"norm_steps": 0}, "norm_steps must be at least 1"),
        ({"input_layers": (0, 1)}, r"input_layers must be in \[1, 2\], got 0"),
        ({"input_layers": (3,)}, r"input_layers must be in \[1, 2\], got 3"),
        ({"way": "explicit"}, "way must be one of .*'implicit', .*got 'explicit'"),
        ({"way": "unrolled", "adjoint": "gmres"}, 'adjoint must be None for way="unrolled"'),
        ({"way": "averaged", "solver": "picard"}, "solver must be of averaged"),
        ({**AVERAGED, "solver": fp.averaged()}, "regulariser must be None"),
        ({"way": "averaged", "regulariser": "absolute"}, "regulariser must have a smoothness"),
        (
            {**AVERAGED, "regulariser_smoothness": 2.0},
            "None for a regulariser that states its own, 1.0, got 2.0",
        ),
        ({"regulariser_smoothness": 0.0}, "regulariser_smoothness must be positive and finite, got 0.0"),
        ({"regulariser": "l1"}, "regulariser must be one of .*'absolute'.*got 'l1'"),
        ({"activation": "gelu"}, "activation must be one of"),
        ({"skip": 0.0}, r"skip must be in \(0, 1\], got 0.0"),
        ({"max_norm": 0.0}, "max_norm must be positive and finite, got 0.0"),
        ({"regulariser_step": 0.0}, "regulariser_step must be positive and finite, got 0.0"),
        ({"tol": 0.0}, "tol must be in"),
        ({"convolutional": True, "kernel_size": 2}, "kernel_size must be odd"),
        ({"convolutional": True, "pool": 5}, "pool must be at most .* 4, got 5"),
        ({"pool": 0}, "pool must be at least 1"),
    ],
    MonotoneOperatorNetwork: [
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"channels": 0}, "channels must be at least 1"),
        ({"margin": -1.0}, "margin must be positive"),
        ({"splitting": "admm"}, "splitting must be one of"),
        ({"convolutional": True, "kernel_size": 2}, "kernel_size must be odd"),
        ({"convolutional": True, "pool": 9}, "pool must be at most .* 6, got 9"),
    ],
    FeedForwardNetwork: [
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"widths": (0,)}, "widths must be at least 1, got 0"),
        ({"features": -1}, "features must be at least 1"),
        ({"activation": "gelu"}, "activation must be one of"),
    ],
    NeuralODE: [
        ({"augment": -1}, "augment must be at least 0"),
        ({"tol": 0.0}, "tol must be in"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
    FullyConvolutionalNetwork: [
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"widths": (0,)}, "widths must be at least 1"),
    ],
    DeepOptEqSegmenter: [
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"stem": (4, 0)}, "stem must be at least 1, got 0"),
        ({"way": "both"}, "way must be one of"),
    ],
}


def made(cls, options):
    dense = {} if cls in ON_IMAGES else {"convolutional": False}
    return cls(**{"num_classes": 3, **dense, **DENSE[cls], **options})


def shaped(model, shape, dtype=np.float32):
    return jax.eval_shape(model.init, jax.random.key(0), np.ones(shape, dtype))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("cls", BAD_OPTIONS)
def test_a_bad_option_is_named(cls):
    for options, message in BAD_OPTIONS[cls]:
        images = cls in ON_IMAGES or options.get("convolutional")
        with pytest.raises(ValueError, match=message):
            shaped(made(cls, options), IMAGES if images else VECTORS)
    if cls is DeepOptEq:
        with pytest.raises(TypeError, match=r"regulariser must be one of .* got int"):
            shaped(made(cls, {"regulariser": 3}), VECTORS)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("cls", DENSE)
def test_a_bad_input_is_named(cls):
    on_images = [made(cls, {} if cls in ON_IMAGES else {"convolutional": True}), BehindStem(FeedForwardNetwork(3))]
    for model in on_images:
        with pytest.raises(ValueError, match=r"x must be \(\*batch, height, width, channels\)"):
            shaped(model, VECTORS)
        with pytest.raises(TypeError, match="x must have a floating dtype, got uint8"):
            shaped(model, IMAGES, np.uint8)
    if cls not in ON_IMAGES:
        for shape in ((), (2, 0)):
            with pytest.raises(ValueError, match=r"x must be \(\*batch, features\) with sizes of at least 1"):
                shaped(made(cls, {}), shape)
    with pytest.raises(ValueError, match="stem must be at least 1, got 0"):
        shaped(BehindStem(FeedForwardNetwork(3), (4, 0)), IMAGES)
