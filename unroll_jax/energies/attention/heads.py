"""Attention with several heads: a step that lowers a sum of pairwise energies."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import SHARE, SIZE, at_least, checked, one_of, require
from unroll_jax.descent import Descent
from unroll_jax.energies.attention.graphs import check_mask
from unroll_jax.energies.attention.kernel_choice import (
    check_kernel,
    energy_by,
    neighbourhood_by,
)
from unroll_jax.energies.attention.least_squares import SOLUTIONS, least_squares
from unroll_jax.energies.attention.pairwise import FORMS
from unroll_jax.energies.attention.rho import RhoLike, resolve_rho
from unroll_jax.energies.attention.sums import combine
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.tokens import Tokens, on_tokens
from unroll_jax.placement import vary_like

__all__ = ["HeadsParams", "multihead_attention", "multihead_attention_example"]

# The backward pass keeps solutions of least squares, which take longest.
SAVE_SOLUTIONS = jax.checkpoint_policies.save_only_these_names(SOLUTIONS)
# Of each head, with its own fans.
XAVIER = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "normal", batch_axis=0)


class HeadsParams(NamedTuple):
    """W_a (num_heads, dim, rank): the weight of each head.

    Example: see `multihead_attention`.
    """

    W_a: Float[Array, "h d k"]


@checked(dim=SIZE, num_heads=SIZE, rank=SIZE, kernel=one_of(("xla", "pallas")))
@checked(form=one_of(FORMS), ridge=at_least(0.0), step_size=SHARE, block=SIZE)
def multihead_attention(
    dim: int,
    *,
    num_heads: int,
    rank: int | None = None,
    rho: RhoLike = "softmax",
    form: str = "jacobi",
    ridge: float = 0.0,
    step_size: float = 1.0,
    mask: Any = None,
    block: int | None = None,
    kernel: str = "xla",
) -> Descent:
    r"""Attention with several heads as descent on the sum of their pairwise energies.

    With tokens as rows of Y, heads :math:`Z^h = Y W_h` and the anchor B = x (0 when x
    is None),

    .. math:: E(Y) = \sum_h \Bigl( \sum_{\{u,v\} \in G} \rho(\tfrac12 |z^h_u - z^h_v|^2)
                     + \tfrac r2 |(Y - B) W_h|_F^2 \Bigr) .

    Each head has weights :math:`\gamma^h_{uv}`, and pulls its projection of a token to
    a mean:

    .. math:: m_u^h = \frac{\sum_{v \ne u} \gamma^h_{uv} z^h_v
                  + r W_h^T b_u + s z^h_u}{D_u^h} , \qquad
              D_u^h = \sum_{v \ne u} \gamma^h_{uv} + r + s ,

    with s = 0 for ``form="jacobi"`` and s = rho'(0) for ``form="softmax"``. The step is

    .. math:: y_u' = y_u - a P_u^+ g_u , \qquad
              g_u = \sum_h D_u^h W_h (z_u^h - m_u^h) = \nabla_{y_u} E , \qquad
              P_u = \sum_h D_u^h W_h W_h^T .

    With a = 1 the token moves to the nearest minimiser y of
    :math:`\sum_h D_u^h |W_h^T y - m_u^h|^2`. If the columns of all W_h are independent,
    every head gets its mean. Conjugate gradients solve one linear system per token, of
    min(d, num_heads rank) unknowns. They solve it for a slightly larger P, which still
    descends. The step falls short in directions whose eigenvalues of :math:`P_u` are
    below about 1e-3 of its trace (1e-6 in float64).

    No step ever raises E, for every rho concave and nondecreasing, every undirected
    graph, W_h, r >= 0, B and a in (0, 1]. E lies below its tangent quadratic, whose
    Hessian is :math:`H = \sum_h (D^h - s - A^h) \otimes W_h W_h^T`,
    :math:`A^h = (\gamma^h_{uv})`. As :math:`D^h + A^h` is diagonally dominant,
    :math:`2 P - H \succeq \sum_h (D^h + s + A^h) \otimes W_h W_h^T \succeq 0`. The
    gradient is in the range of P, so x = P^+ g has g.x = x.Px. Along the step the
    quadratic changes by :math:`-a g.x + \tfrac{a^2}{2} x.Hx \le -a (1 - a) x.Px`. The
    same holds for any larger P.

    One head has the energy of ``attention(dim=dim, rank=rank)`` and the same step of Z.
    The part of Y that W_a does not see stays here, while `attention` averages it. A
    token without neighbours stays.

    Args:
      dim, num_heads: width d of the tokens, and number of heads, at least 1.
      rank: columns k of each W_h, at most ``dim``. None means dim // num_heads, as
        usual.
      rho, form, ridge, step_size, mask, block, kernel: as in `attention`, but no
        kernel="cudnn".

    Returns:
      A `Descent` with params `HeadsParams`. ``x`` is the anchor B, broadcastable to y,
      or None, or an `Anchor`.

    Source: ours. Yang, Huang, Wipf (2022) treat one head. The majoriser is theirs, eq.
    9, summed over heads.

    Example:
      >>> import jax
      >>> layer = multihead_attention(6, num_heads=2, form="softmax")
      >>> params: HeadsParams = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 6))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> bool(energy(params, step(params, y)) < energy(params, y))
      True
    """
    fits = rank is not None or num_heads <= dim
    wanted = f"be at most dim={dim} unless rank is given"
    require(fits, "num_heads", wanted, num_heads)
    require(rank is None or rank <= dim, "rank", f"be between 1 and dim={dim}", rank)
    chosen = resolve_rho(rho)
    graph = check_mask(mask)
    width = rank or dim // num_heads
    check_kernel(kernel, chosen, mask, block)
    log_slope = chosen.log_slope
    assert log_slope is not None

    def init(key: jax.Array) -> HeadsParams:
        return HeadsParams(XAVIER(key, (num_heads, dim, width)))

    def energy(params: HeadsParams, tokens: Tokens) -> Float[Array, "*batch"]:
        anchor, present = _prepare(tokens)
        z = _project(tokens.y, params.W_a)
        pairs = energy_by(
            kernel, chosen, z, graph, present, dtype=tokens.dtype, block=block
        )
        pull = _ridge_energy(ridge, params.W_a, z, tokens.y, anchor)
        return jnp.sum(pairs, axis=-1) + pull

    def step(params: HeadsParams, tokens: Tokens) -> Array:
        return step_and_energy(params, tokens, energy=False)[0]

    def step_and_energy(
        params: HeadsParams, tokens: Tokens, *, energy: bool = True
    ) -> tuple[Array, Float[Array, "*batch"]]:
        # The solve takes longer. To store what comes before it takes more time to
        # compile than the backward pass takes to compute it again.
        @functools.partial(jax.checkpoint, prevent_cse=False, policy=SAVE_SOLUTIONS)
        def descend(W: Array, y: Array, x: Any, present: Any) -> tuple[Array, ...]:
            arrays = tokens._replace(y=y, x=x, present=present)
            total, roots, offset = pull_of(W, arrays, energy=energy)
            return y - step_size * _solve(W, roots, offset), total

        return descend(params.W_a, tokens.y, tokens.x, tokens.present)

    def pull_of(
        W: Float[Array, "h d k"], tokens: Tokens, *, energy: bool
    ) -> tuple[Float[Array, "*batch"], Array, Array]:
        """Returns the energy, the roots of D_u^h of each token, and z_u^h - m_u^h."""
        anchor, present = _prepare(tokens)
        z = _project(tokens.y, W)
        bounded = form == "softmax"
        around = neighbourhood_by(
            kernel,
            chosen,
            z,
            z,
            graph,
            present,
            dtype=tokens.dtype,
            block=block,
            bounded=bounded,
            energy=energy,
        )
        pulls: list[tuple[Any, Array]] = [(around.log_degree, around.mean)]
        if bounded:
            pulls.append((log_slope(jnp.zeros((), z.dtype)), z))
        if ridge > 0.0:
            pulls.append((math.log(ridge), _target(W, z, anchor)))
        total = jnp.sum(around.energy, axis=-1)
        total = total + _ridge_energy(ridge, W, z, tokens.y, anchor)
        return total, *_weigh(pulls, z)

    return on_tokens(init, energy, step, step_and_energy, dim=dim)


def multihead_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Two heads that together see all of a token, and a ridge."""
    y, x = normal(key, 2, batch)
    return multihead_attention(DIM, num_heads=2, ridge=0.5), y, x


def _prepare(tokens: Tokens) -> tuple[Array | None, Array | None]:
    """Returns the anchor as rows, and the tokens present, (*batch, 1, n)."""
    anchor = None if tokens.x is None else jnp.atleast_2d(tokens.x)
    present = None if tokens.present is None else tokens.present[..., None, :]
    return anchor, present


def _project(tokens: Array, W: Float[Array, "h d k"]) -> Float[Array, "*batch h n k"]:
    return jnp.einsum("...nd,hdk->...hnk", tokens, W)


def _target(W: Float[Array, "h d k"], z: Array, anchor: Array | None) -> Array:
    """Returns what the ridge pulls to: the projected anchor, or 0."""
    return jnp.zeros_like(z) if anchor is None else _project(anchor, W)


def _ridge_energy(
    ridge: float,
    W: Float[Array, "h d k"],
    z: Array,
    tokens: Array,
    anchor: Array | None,
) -> Float[Array, "*batch"]:
    """Returns the energy of the ridge, with z the projected tokens."""
    if ridge == 0.0:
        return jnp.zeros(z.shape[:-3], z.dtype)
    pulled = z if anchor is None else _project(tokens - anchor, W)
    return 0.5 * ridge * jnp.sum(pulled**2, axis=(-3, -2, -1))


def _weigh(pulls: list[tuple[Any, Array]], z: Array) -> tuple[Array, Array]:
    """Returns roots of D_u^h, scaled alike for a token, and z_u^h - m_u^h."""
    log_weights, mean = combine(pulls) if len(pulls) > 1 else pulls[0]
    alone = jnp.isneginf(log_weights)
    offset = jnp.where(alone, 0.0, z - mean)
    # P and g may be scaled alike: the heaviest head of each token gets weight 1.
    largest = jnp.max(log_weights, axis=-3, keepdims=True)
    largest = jnp.where(jnp.isneginf(largest), 0.0, largest)
    log_weights = log_weights - jax.lax.stop_gradient(largest)
    return jnp.broadcast_to(jnp.exp(0.5 * log_weights), offset.shape), offset


def _solve(
    W: Float[Array, "h d k"], roots: Float[Array, "*batch h n k"], offset: Array
) -> Float[Array, "*batch n d"]:
    """Returns P_u^+ g_u of every token."""
    with jax.default_matmul_precision("highest"):
        columns = vary_like(_join_columns(W), offset)
        move = least_squares(columns, _join_heads(roots), _join_heads(offset))
    return move.reshape(*offset.shape[:-3], offset.shape[-2], W.shape[1])


def _join_columns(W: Float[Array, "h d k"]) -> Float[Array, "d m"]:
    """Joins the columns of all heads, (d, h k)."""
    return jnp.moveaxis(W, 0, 1).reshape(W.shape[1], -1)


def _join_heads(part: Float[Array, "*batch h n k"]) -> Float[Array, "b m"]:
    """Joins the heads of each token of each example, (tokens, h k)."""
    rows = jnp.moveaxis(part, -3, -2)
    columns = rows.shape[-2] * rows.shape[-1]
    # One axis at a time: the axis of the examples may be sharded.
    return rows.reshape(*rows.shape[:-2], columns).reshape(-1, columns)
