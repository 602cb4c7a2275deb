"""Bad input: one clear error each, before anything is computed. `tests/hostile/solvers.py` has more of these calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.test_splitting import params_of, weight_of
from unroll_jax import fixed_point as fp

Z = jnp.zeros((3, 2))
KEY, ONES = jax.random.key(0), np.ones(3)


def halve(params, z, x):
    return 0.5 * z + 1.0


def keep(params, z, x):
    return z


def images():
    return weight_of(params_of("images"))


# The argument, or what the message says of it; the call. An error of another type stands in the second table.
VALUES = [
    *(("tol must be in", lambda tol=tol: uj.equilibrium(halve, (), Z, tol=tol)) for tol in (-1e-3, 1.0)),
    *(("atol must be", lambda atol=atol: uj.equilibrium(halve, (), Z, atol=atol)) for atol in (-1e-3, np.nan, np.inf)),
    ("adjoint_tol must be in", lambda: uj.equilibrium(halve, (), Z, adjoint_tol=0.0)),
    ("adjoint_max_steps must be", lambda: uj.equilibrium(halve, (), Z, adjoint_max_steps=-1)),
    ("probe needs", lambda: uj.equilibrium(halve, (), Z, adjoint="unrolled", probe=fp.zero_probe())),
    ("keep the state's structure", lambda: uj.equilibrium(lambda p, z, x: (z, z), (), Z)),
    ("y0 must hold at least one", lambda: uj.equilibrium(keep, (), ())),
    ("y0 must be finite", lambda: uj.equilibrium(keep, (), Z.at[0, 0].set(jnp.nan))),
    ("batch_ndim=1 axes", lambda: uj.equilibrium(keep, (), (Z, jnp.zeros((4, 2))), batch_ndim=1)),
    ("its value is like params", lambda: uj.equilibrium(lambda a, b, c: a, jnp.ones(2), Z)),
    ("must return (z', aux)", lambda: uj.equilibrium(keep, 1.0, Z, has_aux=True)),
    ("has_aux must be False", lambda: uj.equilibrium(uj.opteq(4, 3), 1.0, Z, has_aux=True)),
    ("smoothness must be", lambda: fp.averaged(smoothness=0.0)),
    ("eta must be in", lambda: fp.averaged(eta=2.0)),
    ("p + 2 c < 1", lambda: fp.averaged(p=0.5, c=0.3)),
    ("p + 2 c < 1", lambda: fp.averaged(p=0.5, c=0.25)),
    ("damping must be in", lambda: fp.neumann(damping=0.0)),
    ("num_steps must be", lambda: fp.phantom(0)),
    ("damping must be in", lambda: fp.phantom(damping=1.5)),
    ('got "unrolled"', lambda: uj.implicit_root(jnp.sin, adjoint="unrolled")),
    ("adjoint_tol must be in", lambda: uj.implicit_root(jnp.sin, adjoint_tol=0.0)),
    ("batch_ndim must be", lambda: uj.implicit_root(jnp.sin, batch_ndim=-1)),
    ("step_size must be positive", lambda: uj.implicit_argmin(jnp.sum, step_size=0.0)),
    ("optimality must keep", lambda: uj.implicit_root(lambda a, z: jnp.sum(z))(lambda a, z0: z0)(1.0, ONES)),
    (
        "probe needs",
        lambda: uj.implicit_root(lambda a, z: z, forward_mode=True)(lambda a, z: z)(1.0, ONES, probe=fp.zero_probe()),
    ),
    ("step_size must be positive", lambda: uj.prox_gradient(jnp.sum, step_size=-1.0)),
    ("kernel_size must be odd", lambda: fp.monotone_init(KEY, 2, 4)),
    ("margin must be positive", lambda: fp.monotone_weight(params_of("dense"), margin=0.0)),
    ("got None", lambda: fp.monotone_weight(params_of("images"))),
    ("image_shape must be", lambda: fp.monotone_weight(params_of("images"), image_shape=(2, 9))),
    ("step_size must be positive", lambda: fp.monotone_equilibrium(np.eye(3), ONES, step_size=0.0)),
    ("x must hold images", lambda: fp.monotone_equilibrium(images(), jnp.ones((4, 2, 2)))),
    ("x must hold images", lambda: fp.monotone_equilibrium(images(), jnp.ones((5, 2)))),
]
KINDS = [
    ("max_steps must be an integer", lambda: uj.equilibrium(halve, (), Z, max_steps=True)),
    ("adjoint_max_steps must be an integer", lambda: uj.equilibrium(halve, (), Z, adjoint_max_steps=True)),
    *(
        (f"{name} must be one of", lambda name=name: uj.equilibrium(halve, (), Z, **{name: fp.picard}))
        for name in ("solver", "adjoint")
    ),
    ("y0['b'] must have a floating dtype", lambda: uj.equilibrium(keep, (), {"a": Z, "b": Z > 0})),
    ("y0 must be an array, got list", lambda: uj.equilibrium(keep, 1.0, [0.0, 1.0])),
    ("must take (params, z, x)", lambda: uj.equilibrium(lambda z, x, params: z, 1.0, Z)),
    ("jaxopt's are T(z, x, params)", lambda: uj.equilibrium(lambda z, params: z, 1.0, Z)),
    ("got one of (z)", lambda: uj.equilibrium(lambda z: z, 1.0, Z)),
    ("optimality must be a function", lambda: uj.implicit_root(None)),
    ("objective must be a function", lambda: uj.implicit_argmin(3.0)),
    ("prox must be a function", lambda: uj.implicit_argmin(jnp.sum, prox="lasso")),
    ("the solution must be", lambda: uj.implicit_root(lambda a, z: z)(lambda a, z0: [1, 2])(1.0, ONES)),
    ("the solution must have", lambda: uj.implicit_root(lambda a, z: z)(lambda a, z0: jnp.arange(2))(1.0, ONES)),
    ("smooth must be a function", lambda: uj.prox_gradient(None, step_size=1.0)),
    ("prox must be a function", lambda: uj.prox_gradient(jnp.sum, 3, step_size=1.0)),
]


@pytest.mark.usefixtures("unchecked", "x64")
@pytest.mark.parametrize(
    ("error", "words", "call"), [*((ValueError, *row) for row in VALUES), *((TypeError, *row) for row in KINDS)]
)
def test_a_bad_argument_is_one_line_that_names_it(error, words, call):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
