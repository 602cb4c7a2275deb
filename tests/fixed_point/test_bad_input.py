"""Bad input: one clear error each, before anything is computed."""

import jax.numpy as jnp
import pytest

import unroll_jax as uj
from unroll_jax import fixed_point as fp

Z = jnp.zeros((3, 2))

pytestmark = pytest.mark.usefixtures("unchecked")


def halve(params, z, x):
    return 0.5 * z + 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, r"tol must be in \(0, 1\), got 0.0"),
        ({"tol": -1e-3}, "tol must be in"),
        ({"tol": float("nan")}, "tol must be in"),
        ({"tol": 1.0}, "tol must be in"),
        ({"adjoint_tol": 0.0}, "adjoint_tol must be in"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"max_steps": 2.5}, "max_steps must be an integer"),
        ({"max_steps": True}, "max_steps must be an integer, got True"),
        ({"adjoint_max_steps": True}, "adjoint_max_steps must be an integer or None, got True"),
        ({"adjoint_max_steps": -1}, "adjoint_max_steps must be at least 1, or None, got -1"),
        ({"on_failure": "ignore"}, "on_failure must be one of .*'error', 'warn', 'accept'.*, got 'ignore'"),
        ({"batch_ndim": 3}, "batch_ndim must be between 0 and 2"),
        ({"batch_ndim": -1}, "batch_ndim must be between 0 and 2"),
        ({"solver": "newton"}, "solver must be one of .*anderson.* got 'newton'"),
        ({"adjoint": "cg"}, "adjoint must be one of .*conjugate_gradient.* got 'cg'"),
        ({"adjoint": "unrolled", "probe": fp.zero_probe()}, "probe needs the reverse mode"),
        ({"forward_mode": True, "probe": fp.zero_probe()}, "probe needs the reverse mode"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        uj.equilibrium(halve, (), Z, **options)


@pytest.mark.parametrize("name", ["solver", "adjoint"])
def test_what_is_neither_a_name_nor_an_entry_is_refused(name):
    with pytest.raises(TypeError, match=f"{name} must be one of"):
        uj.equilibrium(halve, (), Z, **{name: fp.picard})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda p, z, x: z[:, :1], r"keep shape and dtype, y float32\[3, 2\] became float32\[3, 1\]"),
        (lambda p, z, x: z.astype(jnp.bfloat16), r"keep shape and dtype, y float32\[3, 2\] became bfloat16"),
        (lambda p, z, x: (z, z), "keep the state's structure"),
    ],
)
def test_a_step_that_changes_the_state_is_refused(step, message):
    with pytest.raises(ValueError, match=message):
        uj.equilibrium(step, (), Z)


@pytest.mark.parametrize(
    ("y0", "error", "message"),
    [
        (jnp.zeros((3, 2), jnp.int32), TypeError, "y0 must have a floating dtype, got int32"),
        ({"a": Z, "b": Z > 0}, TypeError, r"y0\['b'\] must have a floating dtype, got bool"),
        (Z.at[0, 0].set(jnp.nan), ValueError, "y0 must be finite"),
        ((), ValueError, "y0 must hold at least one array"),
    ],
)
def test_a_bad_state_is_named(y0, error, message):
    with pytest.raises(error, match=message):
        uj.equilibrium(lambda p, z, x: z, (), y0)


def test_leaves_must_share_their_batch_axes():
    with pytest.raises(ValueError, match="share their first batch_ndim=1 axes"):
        uj.equilibrium(lambda p, z, x: z, (), (jnp.zeros((3, 2)), jnp.zeros((4, 2))), batch_ndim=1)


def test_nan_in_the_parameters_is_an_error_that_says_so():
    with pytest.raises(fp.ConvergenceError, match="met a value that is not finite"):
        uj.equilibrium(lambda p, z, x: p * z + 1.0, jnp.nan, Z, solver="picard", on_failure="error")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: fp.damped(0.0), "share must be in"),
        (lambda: fp.anderson(0), "window must be at least 1"),
        (lambda: fp.averaged(smoothness=0.0), "smoothness must be positive"),
        (lambda: fp.averaged(eta=2.0), "eta must be in"),
        (lambda: fp.averaged(p=0.5, c=0.3), r"p \+ 2 c < 1"),
        (lambda: fp.averaged(p=0.5, c=0.25), r"p \+ 2 c < 1"),
        (lambda: fp.gmres(0), "window must be at least 1"),
        (lambda: fp.neumann(0), "terms must be at least 1"),
        (lambda: fp.neumann(damping=0.0), "damping must be in"),
        (lambda: fp.unrolled(0), "num_steps must be at least 1"),
        (lambda: fp.phantom(0), "num_steps must be at least 1"),
        (lambda: fp.phantom(damping=1.5), "damping must be in"),
    ],
)
def test_a_factory_checks_its_numbers(factory, message):
    with pytest.raises(ValueError, match=message):
        factory()
