"""Training loops of other libraries, as their users write them: constraints change two lines."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import unroll_jax as uj
from tests.test_docs import run

STEPS, BOUND = 150, 0.2


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))[:, 0]


class ConstrainedState(TrainState):
    """`TrainState` passes only gradients to its optimiser; this one passes the violations on."""

    def apply_gradients(self, *, grads, violations):
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params, violations=violations)
        return self.replace(step=self.step + 1, params=optax.apply_updates(self.params, updates), opt_state=opt_state)


def test_a_train_state_of_flax_passes_violations_on():
    """Random labels in [0, 1] under a bound of 0.2 on the mean prediction, which binds."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 2)).astype(np.float32), rng.uniform(size=64).astype(np.float32)
    model, dual = Network(), uj.dual_ascent(uj.proportional_integral(0.1, 1.0))
    optimizer = uj.primal_dual(optax.adam(2e-2), dual, violations={"mean": jnp.zeros(())})
    params = model.init(jax.random.key(0), x)["params"]
    state = ConstrainedState.create(apply_fn=model.apply, params=params, tx=optimizer)

    @jax.jit
    def train_step(state, x, y):
        def loss_fn(params):
            predictions = state.apply_fn({"params": params}, x)
            loss, violations = jnp.mean((predictions - y) ** 2), {"mean": jnp.mean(predictions) - BOUND}
            return uj.lagrangian(loss, violations, uj.multipliers_of(state.opt_state)), violations  # was: return loss

        grads, violations = jax.grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, violations=violations)  # was: state.apply_gradients(grads=grads)

    state, _ = jax.lax.scan(lambda state, _: (train_step(state, x, y), None), state, length=STEPS)
    np.testing.assert_allclose(np.mean(state.apply_fn({"params": state.params}, x)), BOUND, atol=0.02)
    # At an optimum the gradient of the Lagrangian in the last bias is 0.
    np.testing.assert_allclose(uj.multipliers_of(state.opt_state)["mean"], 2.0 * (np.mean(y) - BOUND), rtol=0.1)


@pytest.mark.slow
def test_the_loops_of_the_docs_end_within_their_bounds():
    """No class of digits is above its bound by 0.01 nats; without multipliers the worst is, by 0.02, 0.04 and 0.5."""
    names = run("how_to/training_loops.md")
    x, y, zeros = names["x"], names["y"], {"loss": jnp.zeros(10)}
    last = uj.constrained.batch_violations(names["looser"], names["losses"], y)[1]
    for violations in (names["violations"], names["loss"](names["mlp"], x, y, zeros)[1], last):
        assert np.max(violations["loss"]) <= 0.01
    states = names["optimizer"].opt_state, names["opt_state"]
    for multipliers in (*map(uj.multipliers_of, states), names["state"].multipliers):
        assert np.max(multipliers["loss"]) > 0.5
