"""Params of a shape that a layer was not made for are refused in words."""

import jax.numpy as jnp
import pytest

import unroll_jax as uj
from unroll_jax.energies import AttentionParams, FeedForwardParams, HopfieldParams
from unroll_jax.energies.attention.heads import MAJORISERS, HeadsParams

CASES = [
    *((uj.multihead_attention(4, num_heads=2, majoriser=m), HeadsParams, "W_a", (2, 4, 2)) for m in MAJORISERS),
    (uj.attention(dim=4, rank=2), AttentionParams, "W_a", (4, 2)),
    (uj.causal_attention(dim=4, rank=2), AttentionParams, "W_a", (4, 2)),
    (uj.causal_attention(), AttentionParams, "W_a", None),
    (uj.hopfield(4, num_patterns=3), HopfieldParams, "S", (3, 4)),
    (uj.feedforward(4), FeedForwardParams, "W_f", (4, 4)),
    (uj.feedforward(4, spectrum=(0.0, 0.95)), FeedForwardParams, "W_f", (4, 4)),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("layer", "make", "name", "shape"), CASES)
def test_params_of_another_shape_are_named(layer, make, name, shape):
    """Also those that broadcasting would let pass: more heads than the layer has, one column fewer, no weight."""
    y, wrong = jnp.ones((6, 4)), [(3, 3), (3, 4, 2), (2, 4, 3), (4, 3)]
    for function in (layer.step, layer.energy):
        for other in wrong:
            with pytest.raises(ValueError, match="must be") as caught:
                function(make(jnp.ones(other)), y)
            assert str(caught.value) == f"{name} must be {shape}, got shape {other}; init(key) makes it"
        if shape is not None:
            with pytest.raises(ValueError, match=r"got None; init\(key\) makes it"):
                function(make(None), y)
