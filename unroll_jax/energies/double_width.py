"""Asymmetric and layer-dependent weights, simulated by one wide symmetric layer."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import check, in_interval, require
from unroll_jax.descent import Descent
from unroll_jax.energies.transformer import transformer
from unroll_jax.energies.transformer_parts import TransformerParams

__all__ = ["AsymmetricLayer", "SymmetricEmbedding", "symmetric_embedding"]

# Step size a of the wide layer: a power of 2, for which (1 - a) I - a W_f is exact.
STEP_SIZE = 0.5
# Penalties with prox(s y) = s prox(y) for s > 0, and prox(0) = 0.
PHIS = ("relu", "identity")


class AsymmetricLayer(NamedTuple):
    """W_a (d, k) of the attention, and W (d, d') of the linear map that follows it.

    Neither needs to be symmetric.

    Example: see `symmetric_embedding`.
    """

    W_a: Float[np.ndarray | Array, "d k"]
    W: Float[np.ndarray | Array, "d e"]


class SymmetricEmbedding(NamedTuple):
    """One symmetric layer, and the maps in and out that make it a network.

    Attributes:
      descent: the wide layer. Applied L times, always with ``params``, it is the
        network of L layers.
      params: its `TransformerParams`.
      embed: ``y (*batch, n, d_0) -> (*batch, n, D)``.
      readout: ``(*batch, n, D) -> (*batch, n, d_L)``, of the wide state after the last
        layer.

    Example: see `symmetric_embedding`.
    """

    descent: Descent
    params: TransformerParams
    embed: Callable[[Array], Array]
    readout: Callable[[Array], Array]


def symmetric_embedding(
    layers: Sequence[AsymmetricLayer],
    *,
    phi: str = "relu",
    form: str = "softmax",
    mask: Any = None,
    contraction: float | None = None,
    dtype: Any = jnp.float32,
) -> SymmetricEmbedding:
    r"""Returns one symmetric layer that computes a network of layers of any weights.

    The network is, for l = 1..L with :math:`W_l` of shape :math:`(d_{l-1}, d_l)`,

    .. math:: Y_l = prox_\phi( [softmax_\beta(Y_{l-1} W_{a,l} W_{a,l}^T Y_{l-1}^T)
                  Y_{l-1}] W_l ) .

    The wide state has a block for each :math:`Y_l`, and D = d_0 + ... + d_L columns.
    One layer doubles the width. Its linear map is symmetric. It has
    :math:`s_l / s_{l-1} W_l` from block l - 1 to block l, its transpose back, and zeros
    elsewhere.

    Started from :math:`Y_0` in block 0, block l stays 0 for l - 1 layers, and is
    :math:`s_l Y_l` after l layers: no path is shorter. Block l is then the front.
    Attention must see only the front. W_a is block-diagonal with
    :math:`W_{a,l+1} / s_l`. Two layers later echoes return to a block. The ratios
    :math:`s_l / s_{l-1} \le \epsilon / |W_l|_2` make them :math:`\epsilon^2` of the
    tokens, and :math:`\epsilon^4` in the logits. With :math:`\epsilon^4` at most the
    machine's epsilon the outputs are equal to round-off. (Up to L = 2 no echo is in
    time, and they are equal for any ratio.) Ratios are powers of 2, and so exact.

    Each half of the wide layer lowers its part of the energy of `transformer`: the
    linear map has norm at most :math:`2 \epsilon \le 1`, so :math:`a \le 2 / L`. This
    decrease comes from shrinking states, not from optimisation.

    Attention with logits :math:`y_u . A y_v` for an asymmetric A is impossible. In any
    width, tokens that are functions of only y_u have symmetric logits under a symmetric
    A, up to terms of only u or only v. The weights then obey
    :math:`P_{uv} P_{vw} P_{wu} = P_{uw} P_{wv} P_{vu}`. Asymmetric attention breaks
    this. Nor can one width for all L hold the weights of L layers: a symmetric D by D
    map has D (D + 1) / 2 numbers.

    Args:
      layers: the network's layers, first to last. Bias needs a constant feature, which
        attention leaves as it is.
      phi: "relu" or "identity": a nonlinearity that commutes with scaling.
      form: form of the attention step, "softmax" or "jacobi".
      mask: symmetric boolean (n, n) graph of the tokens. None is the complete graph.
      contraction: epsilon in (0, 1/2]. None takes the fourth root of the machine
        epsilon of ``dtype``.
      dtype: dtype of the wide parameters. s_L and 1 / s_L must be normal numbers of it.

    Source: ours. Yang, Huang, Wipf (2022), supplement F.1 and F.2, give no
    construction.

    Example:
      >>> import numpy as np
      >>> layer = AsymmetricLayer(W_a=np.eye(2), W=np.array([[0.0, 1.0], [0.0, 0.0]]))
      >>> wide: SymmetricEmbedding = symmetric_embedding([layer, layer])
      >>> (wide.params.W_f == wide.params.W_f.T).all().item(), wide.params.W_f.shape
      (True, (6, 6))
    """
    epsilon = _check(layers, phi, contraction, dtype)
    matrices = [
        (np.asarray(layer.W_a, np.float64), np.asarray(layer.W, np.float64))
        for layer in layers
    ]
    exponents = np.array([_ratio_exponent(epsilon, W) for _, W in matrices])
    ratios = 2.0**exponents
    scales = np.cumprod([1.0, *ratios])
    last_exponent = np.sum(exponents)
    if last_exponent < np.finfo(jnp.dtype(dtype)).minexp:
        raise ValueError(
            "layers must be few enough for the scale of the last block,"
            f" 2^{last_exponent:.0f}, to be a normal {jnp.dtype(dtype).name}, got"
            f" {len(layers)}; widen dtype or contraction"
        )

    # The blocks of Y_0 to Y_L, and the columns of the layers' attention.
    widths = [W.shape[0] for _, W in matrices]
    widths.append(matrices[-1][1].shape[1])
    blocks = _slices(widths)
    columns = _slices([W_a.shape[1] for W_a, _ in matrices])
    width = blocks[-1].stop
    rank = columns[-1].stop

    wide_W_a = np.zeros((width, rank))
    mixing = np.zeros((width, width))
    for place, (W_a, W) in enumerate(matrices):
        here = blocks[place]
        following = blocks[place + 1]
        wide_W_a[here, columns[place]] = W_a / scales[place]
        mixing[here, following] = ratios[place] * W
        mixing[following, here] = ratios[place] * W.T
    # The layer applies (1 - a) I - a W_f, which must be the mixing.
    W_f = ((1.0 - STEP_SIZE) * np.eye(width) - mixing) / STEP_SIZE

    layer = transformer(
        width,
        rank=min(width, rank),
        phi=phi,
        form=form,
        mask=mask,
        step_size=STEP_SIZE,
    )

    def embed(y: Array) -> Array:
        rest = jnp.zeros((*y.shape[:-1], width - widths[0]), y.dtype)
        return jnp.concatenate([y, rest], axis=-1)

    return SymmetricEmbedding(
        layer,
        TransformerParams(jnp.asarray(wide_W_a, dtype), jnp.asarray(W_f, dtype)),
        embed=embed,
        readout=lambda wide: wide[..., blocks[-1]] / float(scales[-1]),
    )


def _slices(widths: list[int]) -> list[slice]:
    """Returns the slices of adjacent blocks of these widths."""
    edges = np.cumsum([0, *widths]).tolist()
    return [slice(*pair) for pair in pairwise(edges)]


def _ratio_exponent(epsilon: float, W: np.ndarray) -> int:
    """Returns log2 of s_l / s_{l-1}, the largest power of 2 within epsilon / |W|_2."""
    return math.floor(math.log2(epsilon / max(1.0, np.linalg.norm(W, 2))))


def _check(
    layers: Sequence[AsymmetricLayer], phi: str, contraction: float | None, dtype: Any
) -> float:
    """Checks the arguments of `symmetric_embedding`, and returns epsilon."""
    require(layers, "layers", "hold at least one layer", "none")
    wanted = f"be one of {PHIS}, which commute with scaling"
    require(phi in PHIS, "phi", wanted, repr(phi))
    check("contraction", contraction, in_interval("(0, 1/2]"), optional=True)
    for place, (W_a, W) in enumerate(layers):
        expected = np.shape(layers[place - 1].W)[1] if place > 0 else np.shape(W)[0]
        are_matrices = np.ndim(W) == 2 == np.ndim(W_a)
        fits = are_matrices and np.shape(W)[0] == np.shape(W_a)[0] == expected
        wanted = f"have W_a (d, k) and W (d, e) with d = {expected}"
        got = f"shapes {np.shape(W_a)} and {np.shape(W)}"
        require(fits, f"layers[{place}]", wanted, got)
    return float(jnp.finfo(dtype).eps) ** 0.25 if contraction is None else contraction
