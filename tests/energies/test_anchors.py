"""An anchor may be smaller than the tokens: it broadcasts to them, in every layer that takes one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.descent import Anchor
from unroll_jax.energies import attention, hopfield, multihead_attention

LAYERS = {
    "attention": attention(ridge=0.7),
    "attention-low-rank": attention(ridge=0.7, dim=4, rank=2),
    "attention-softmax": attention(ridge=0.7, form="softmax"),
    "hopfield": hopfield(4, num_patterns=3),
    "multihead-block": multihead_attention(4, num_heads=2, ridge=0.7),
    "multihead-orthogonal": multihead_attention(4, num_heads=2, ridge=0.7, majoriser="orthogonal"),
}


SHAPES = [(4,), (6, 4), (1, 6, 4), (2, 1, 4)]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", LAYERS)
def test_an_anchor_that_broadcasts_is_one_written_out(name):
    layer, generator = LAYERS[name], np.random.default_rng(0)
    y, *anchors = (generator.normal(size=size) for size in ((2, 6, 4), *SHAPES))
    params = jax.tree.map(lambda leaf: generator.normal(size=leaf.shape), jax.eval_shape(layer.init, jax.random.key(0)))

    @jax.jit
    def all_of(params, y, anchors, there):
        """Energy, step, and step where two tokens are absent; of all shapes written out as one batch."""

        def of(y, x):
            return layer.energy(params, y, x), layer.step(params, y, x), layer.step(params, y, Anchor(x, there))

        whole = jnp.stack([jnp.broadcast_to(x, y.shape) for x in anchors])
        ys = jnp.broadcast_to(y, whole.shape)
        return [of(y, x) for x in anchors], of(ys, whole), layer.step(params, ys, 2.0 * whole)

    of_shapes, (energies, *moved), doubled = all_of(params, y, anchors, np.arange(6) < 4)
    for i, (shape, (energy, *steps)) in enumerate(zip(SHAPES, of_shapes, strict=True)):
        assert np.max(np.abs(steps[0] - doubled[i])) > 0.01, f"the anchor {shape} does nothing"
        np.testing.assert_allclose(energy, energies[i], rtol=1e-12, err_msg=str(shape))
        for stepped, expected in zip(steps, moved, strict=True):
            np.testing.assert_allclose(stepped, expected[i], rtol=1e-12, atol=1e-12, err_msg=str(shape))
