"""Training loops of other libraries, written as their users write them: constraints change two lines.

Each fits a small network to random labels in [0, 1] under a bound of 0.2 on the mean prediction, which binds.
"""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import unroll_jax as uj

STEPS, BOUND = 150, 0.2


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(64, 2)).astype(np.float32), rng.uniform(size=64).astype(np.float32)


def optimizer():
    dual = uj.dual_ascent(uj.proportional_integral(0.1, 1.0))
    return uj.primal_dual(optax.adam(2e-2), dual, violations={"mean": jnp.zeros(())})


def loss_and_violations(predictions, labels):
    return jnp.mean((predictions - labels) ** 2), {"mean": jnp.mean(predictions) - BOUND}


def check(predictions, opt_state):
    """The bound is met, at the price that the last bias gives at an optimum: its gradient of the Lagrangian is 0."""
    np.testing.assert_allclose(np.mean(predictions), BOUND, atol=0.02)
    price = 2.0 * (np.mean(data()[1]) - BOUND)
    np.testing.assert_allclose(uj.multipliers_of(opt_state)["mean"], price, rtol=0.1)


@pytest.mark.slow
def test_flax_nnx():
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(2, 8, rngs=rngs)
            self.out = nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x):
            return self.out(nnx.tanh(self.hidden(x)))[:, 0]

    x, y = data()
    model = Network(nnx.Rngs(0))
    state = nnx.Optimizer(model, optimizer(), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, state, x, y):
        def loss_fn(model):
            loss, violations = loss_and_violations(model(x), y)
            return uj.lagrangian(loss, violations, uj.multipliers_of(state.opt_state)), violations  # was: return loss

        grads, violations = nnx.grad(loss_fn, has_aux=True)(model)
        state.update(model, grads, violations=violations)  # was: state.update(model, grads)

    for _ in range(STEPS):
        train_step(model, state, x, y)
    check(model(x), state.opt_state)


def test_equinox():
    x, y = data()
    model = eqx.nn.MLP(2, "scalar", 8, 1, jnp.tanh, key=jax.random.key(0))
    optim = optimizer()
    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        def loss_fn(model):
            loss, violations = loss_and_violations(jax.vmap(model)(x), y)
            return uj.lagrangian(loss, violations, uj.multipliers_of(opt_state)), violations  # was: return loss

        grads, violations = eqx.filter_grad(loss_fn, has_aux=True)(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optim.update(grads, opt_state, params, violations=violations)  # was without violations
        return eqx.apply_updates(model, updates), opt_state

    for _ in range(STEPS):
        model, opt_state = make_step(model, opt_state, x, y)
    check(jax.vmap(model)(x), opt_state)


class ConstrainedState(TrainState):
    """`TrainState` passes only gradients to its optimiser; this one passes the violations on."""

    def apply_gradients(self, *, grads, violations):
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params, violations=violations)
        return self.replace(step=self.step + 1, params=optax.apply_updates(self.params, updates), opt_state=opt_state)


@pytest.mark.parametrize("scanned", [False, True], ids=["loop", "scan"])
def test_flax_linen(scanned):
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))[:, 0]

    x, y = data()
    model = Network()
    params = model.init(jax.random.key(0), x)["params"]
    state = ConstrainedState.create(apply_fn=model.apply, params=params, tx=optimizer())

    @jax.jit
    def train_step(state, x, y):
        def loss_fn(params):
            loss, violations = loss_and_violations(state.apply_fn({"params": params}, x), y)
            return uj.lagrangian(loss, violations, uj.multipliers_of(state.opt_state)), violations  # was: return loss

        grads, violations = jax.grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, violations=violations)  # was: state.apply_gradients(grads=grads)

    if scanned:
        state, _ = jax.lax.scan(lambda state, _: (train_step(state, x, y), None), state, length=STEPS)
    else:
        for _ in range(STEPS):
            state = train_step(state, x, y)
    check(state.apply_fn({"params": state.params}, x), state.opt_state)
