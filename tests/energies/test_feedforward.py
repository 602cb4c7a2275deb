"""The quadratic energy of a token's features and the layer that lowers it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
from tests.energies.comparing import Case, assert_equal
from tests.energies.dust_reference import soft
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.energies import FeedForwardParams, clip_spectrum
from unroll_jax.energies.proximal.operators import resolve_proximal

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
SHRINK = uj.Proximal(
    lambda y: 0.5 * jnp.sum(y**2, (-2, -1)), lambda y, step_size: y / (1.0 + step_size)
)


def test_energy_and_step_equal_the_reference():
    """By name an activation is applied as it is at any step size a: its phi is divided
    by a. A spectrum that holds all eigenvalues leaves the symmetric part. A Proximal of
    a user's own is taken as it is.
    """
    assert resolve_proximal(SHRINK) is SHRINK
    rng = np.random.default_rng(0)
    clipped = (0.1, 2.0)
    wide = (-5.0, 5.0)
    y = rng.uniform(size=(5, 4))
    x = rng.normal(size=(5, 4))
    W_f = rng.normal(size=(4, 4))
    values, basis = np.linalg.eigh((W_f + W_f.T) / 2)
    assert np.max(np.abs(values)) < 5.0
    assert np.any((values > 0.1) & (values < 2.0)), "clipped leaves one"
    matrices = {
        None: W_f,
        wide: W_f,
        clipped: (basis * np.clip(values, *clipped)) @ basis.T,
    }
    phi_of_tanh = 0.5 * np.sum(
        (1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y) - y**2
    )
    cases = {}
    # of phi: its value at y, and its prox
    for phi, a, spectrum, anchor, penalty, prox in (
        ("identity", 0.5, None, None, 0.0, lambda u, a: u),
        (
            "soft_threshold",
            0.1,
            None,
            x,
            np.sum(y),
            soft,
        ),
        ("tanh", 2.0, None, x, phi_of_tanh / 2.0, lambda u, a: np.tanh(u)),
        ("identity", 0.3, clipped, None, 0.0, lambda u, a: u),
        ("identity", 0.1, wide, None, 0.0, lambda u, a: u),
        (SHRINK, 0.5, None, None, 0.5 * np.sum(y**2), lambda u, a: u / (1.0 + a)),
    ):
        energy = reference.feedforward_energy(y, matrices[spectrum], anchor) + penalty
        step = reference.feedforward_step(
            y, matrices[spectrum], anchor, step_size=a, prox=prox
        )
        layer = uj.feedforward(4, phi=phi, step_size=a, spectrum=spectrum)
        cases[phi, a] = Case(layer, FeedForwardParams(W_f), y, anchor, energy, step)
    assert_equal(cases)


def test_derivatives_of_clipped_spectra_are_finite():
    """All eigenvalues equal: inside the interval the map is the identity, outside it
    is constant. A skew part goes."""

    def total(W_f):
        clipped = clip_spectrum(W_f)
        return jnp.sum(clipped**2), clipped

    gradient = compiled(jax.grad(total, has_aux=True))
    skew = np.triu(np.ones((3, 3)), 1)
    for level, slope in ((0.5, 1.0), (3.0, 0.0), (-1.0, 0.0)):
        slopes, clipped = gradient(level * np.eye(3) + skew - skew.T)
        assert_allclose(
            slopes, slope * 2.0 * level * np.eye(3), atol=1e-12, err_msg=f"{level=}"
        )
        assert_allclose(
            clipped,
            np.clip(level, 0.0, 0.95) * np.eye(3),
            atol=1e-12,
            err_msg=f"{level=}",
        )


def test_the_step_of_the_authors_code_is_reported():
    """a = 1 with eigenvalues up to 0.95: beyond 1 / L = 0.513."""
    with pytest.warns(
        UserWarning,
        match=r"step_size=1.0 is beyond 1/L = 0.513 for eigenvalues up to 0.95",
    ):
        uj.feedforward(3, step_size=1.0, spectrum=(0.0, 0.95))


def test_at_initialisation_the_default_step_qualifies():
    @compiled
    def drawn(key):
        return jax.vmap(uj.feedforward(6).init)(jax.random.split(key, 20))

    W_f = np.asarray(drawn(jax.random.key(20, impl="rbg")).W_f)
    assert W_f.shape == (20, 6, 6)
    assert len(np.unique(W_f[:, 0, 0])) == 20
    assert np.max(np.linalg.eigvalsh((W_f + W_f.transpose(0, 2, 1)) / 2)) <= 0.95 + 1e-5
