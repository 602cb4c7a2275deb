"""Corollary 4.5 of Yang et al. (2022): a transformer's energy falls outside of a
ball, whose radius is known here."""

import numpy as np

from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax import transformer
from unroll_jax.energies import TransformerParams

pytestmark = in_float64
DIM, TOKENS = 3, 6


def radius(W_a, W_f, step_size):
    r"""The radius of the ball, in the norm |Y|_M = Tr(Y M Y^T)^(1/2), M = I + sym(W_f),
    around 0. Attention moves no token by more than (n - 1) e^(-1/2) in z = W_a^T y, as
    weights fall like exp(-r^2 / 2), and so Y by kappa at most. The gradient step then
    shrinks |Y|_M by q = |1 - a2 mu|, mu the eigenvalues of M. The pair energy is
    between -n (n - 1) / 2 and 0. So E changes by at most n (n - 1) / 2 + (q^2 (N +
    kappa)^2 - N^2) / 2, N = |Y|_M.
    """
    mu = 1.0 + np.linalg.eigvalsh(0.5 * (W_f + W_f.T))
    kappa = (
        np.sqrt(mu[-1] * TOKENS / np.e)
        * (TOKENS - 1)
        / np.linalg.svd(W_a, compute_uv=False)[-1]
    )
    q = np.max(np.abs(1.0 - step_size * mu))
    pairs = TOKENS * (TOKENS - 1)
    assert q < 1.0
    return np.max(
        np.roots([1.0 - q**2, -2.0 * q**2 * kappa, -(q**2) * kappa**2 - pairs])
    )


def change(layer):
    return compiled(
        lambda params, y: (
            layer.energy(params, layer.step(params, y), None)
            - layer.energy(params, y, None)
        )
    )


def draw(seed, step_size):
    rng = np.random.default_rng(seed)
    W_a = rng.normal(size=(DIM, DIM))
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    M = basis @ np.diag(rng.uniform(0.05, 1.9 / step_size, DIM)) @ basis.T
    y = rng.normal(size=(3, 200, TOKENS, DIM))
    y[1] = y[1, :, :1] + 0.1 * y[1]
    y[2] = y[2, :, :1, :] * rng.uniform(0.5, 1.5, (200, TOKENS, 1)) + 0.01 * y[2]
    size = np.sqrt(np.einsum("...nd,de,...ne->...", y, M, y))
    scale = (
        radius(W_a, M - np.eye(DIM), step_size)
        * rng.choice([1.0, 1.1, 3.0, 100.0], size.shape)
        / size
    )
    params = TransformerParams(W_a, M - np.eye(DIM))
    return params, scale[..., None, None] * y


def test_corollary_4_5_the_energy_falls_outside_of_the_ball():
    for step_size in (0.1, 0.7):
        rise = change(transformer(DIM, phi="identity", step_size=step_size))
        for seed in range(10):
            assert np.all(rise(*draw(seed, step_size)) <= 0.0)


def test_inside_of_the_ball_it_may_rise():
    """A hub and leaves: attention moves leaves to the hub, away from 0, by more than
    the short other step undoes."""
    y = np.concatenate(
        [
            100.0 * np.eye(1, 6),
            np.concatenate([np.full((5, 1), 99.5), 2.0 * np.eye(5)], axis=1),
        ]
    )
    layer = transformer(6, phi="identity", step_size=1e-5)
    weights = (np.eye(6), np.zeros((6, 6)))
    assert change(layer)(TransformerParams(*weights), y) > 1.0
    assert np.linalg.norm(y) < radius(*weights, 1e-5)


def test_there_is_no_ball_for_narrow_w_a():
    """Tokens differ where W_a does not look: attention moves them by a share of
    their size, however large that is."""
    # one token attends to all, the others to it with weight a, to one another with a^2
    # before softmax
    n, a = 20, 0.3
    place = np.sqrt(-2.0 * np.log(a)) * np.concatenate(
        [np.zeros((1, n - 1)), np.eye(n - 1)]
    )
    W_a = np.concatenate([np.eye(n - 1), np.zeros((1, n - 1))])
    rise = change(transformer(n, rank=n - 1, phi="identity", step_size=0.005))
    params = TransformerParams(W_a, np.zeros((n, n)))
    height = np.where(np.arange(n) == 0, 1.5, 1.0)[:, None]
    for scale in (1e2, 1e4, 1e6):
        y = np.concatenate([place, scale * height], axis=1)
        assert rise(params, y) > 0.01 * scale**2
