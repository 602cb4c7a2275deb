"""The training step against one written out by hand, in NumPy but for the model's
gradient and Adam."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from scipy.fft import dctn

from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, jit_step
from unroll_jax.train.tasks.video.task import make

# Shares that the first layers miss, and a clip that binds. test_forms.py has the other
# bounds, test_dual_options.py the other rules of multipliers.
OPTIONS = {
    "constraints.reference": None,
    "constraints.alpha": (0.6,),
    "remat": "everything",
    "steps": 5,
    "primal.learning_rate": 0.02,
    "primal.warmup_share": 0.4,
    "primal.clip_norm": 0.05,
}


@jax.jit
def _losses_and_gradient(params, clean, noisy, weights):
    losses, pull = jax.vjp(lambda params: _layer_losses(params, clean, noisy), params)
    return losses, pull(weights)[0]


def _layer_losses(params, clean, noisy):
    y, losses = noisy, []
    for layer in (None, *range(len(params.V))):
        if layer is not None:
            V, W, U = params.V[layer], params.W[layer], params.U[layer]
            attended = (
                jax.nn.softmax(y @ V.T @ V @ jnp.swapaxes(y, -1, -2), axis=-1) @ y
            )
            y = jnp.maximum(attended @ (W + W.T) / 2 + y @ U, 0.0)
        losses.append(0.5 * jnp.mean(jnp.sum((y - clean) ** 2, axis=-1)))
    return jnp.stack(losses)


def _by_hand(config, clips, params, noise_key, batches):
    settings = config.constraints
    margins = np.array([settings.first_margin, settings.margin])
    kept = (1 - settings.alpha[0]) * (1 - margins)
    lam = integral = np.zeros(2)
    # a warm-up of two steps, and a cosine over three
    shares = jnp.array([0.5, 0.75, 1.0, 0.75, 0.25])
    adam = optax.adam(lambda count: config.primal.learning_rate * shares[count])
    primal = optax.chain(optax.clip_by_global_norm(0.05), adam)
    primal_state = primal.init(params)
    rows = []
    for step, batch in enumerate(batches):
        clean = batch.astype(np.float32) / np.float32(255)
        noise = jax.random.normal(
            jax.random.fold_in(jax.random.wrap_key_data(noise_key), step), clean.shape
        )
        noisy = (
            clean
            + np.sqrt(np.float32(config.train_gamma * clips.spec.pixel_std)) * noise
        )
        scale = 1 + lam.sum()
        # w_l = [l = L] + lambda_l - (1 - alpha_{l+1}) lambda_{l+1}
        weights = (np.array([0.0, *lam]) - [*(kept * lam), -1.0]) / scale
        losses, gradients = _losses_and_gradient(
            params, clean, noisy, weights.astype(np.float32)
        )
        f = np.asarray(losses, np.float64)
        c = f[1:] - kept * f[:-1]
        rows.append((f, c, lam, (f[-1] + lam @ c) / scale))
        update, primal_state = primal.update(_turned(gradients), primal_state)
        params = jax.tree.map(jnp.add, params, _turned(update, back=True))
        integral = np.maximum(integral + config.dual.learning_rate * c, 0)
        lam = np.maximum(integral + config.dual.proportional_gain * c, 0)
    return rows, params


def _turned(weights, *, back=False):
    """Weights in the bases of their sides: the cosine transform of a square patch on
    sides of pixels."""
    size = weights.V.shape[-1]
    side = round(np.sqrt(size))
    patches = np.eye(size).reshape(-1, side, side)
    turn = dctn(patches, norm="ortho", axes=(1, 2)).reshape(size, -1)
    turn = turn if back else turn.T
    leaves = (np.float64(getattr(weights, name)) for name in "VWU")
    V, W, U = (leaf @ turn.T for leaf in leaves)
    turned = {"V": V, "W": turn @ W, "U": turn @ U}
    return weights._replace(**{name: np.float32(leaf) for name, leaf in turned.items()})


@pytest.mark.slow
def test_steps_are_those_of_the_algorithm_written_out(changed, clips):
    task = make(changed(**OPTIONS), clips)
    config, plan = task.options, make_plan(task)
    batches = list(itertools.islice(clips.batches("train", batch_size=4, seed=0), 5))
    state, step = init_state(task, plan, config.seed), jit_step(task, plan)
    params, noise_key = jax.tree.map(
        jnp.copy, (state.params["params"]["layers"], state.key)
    )
    rows, last = _by_hand(config, clips, params, noise_key, batches)
    for batch, (losses, violations, multipliers, value) in zip(
        batches, rows, strict=True
    ):
        state, metrics = step(state, batch)
        assert_allclose(metrics.layer_losses, losses, rtol=2e-4)
        assert_allclose(metrics.prices.violations, violations, rtol=1e-3, atol=1e-4)
        assert_allclose(metrics.prices.multipliers, multipliers, rtol=2e-3, atol=1e-4)
        assert_allclose(metrics.value, value, rtol=5e-4)
    # Adam divides by the size of a gradient, so rounding shows where a gradient is
    # nearly 0: 0.02 is a whole step.
    chex.assert_trees_all_close(state.params["params"]["layers"], last, atol=1e-3)
    assert np.max(rows[-1][2]) > 0.0, "the case never raised a multiplier"


@pytest.mark.xdist_group("video-runs")  # whose step this is
def test_a_step_is_traced_once_and_consumes_its_state(config, clips):
    task = make(config, clips)
    task = task._replace(losses=chex.assert_max_traces(task.losses, n=1))
    plan = make_plan(task)
    batches = [clips.splits["train"][start : start + 4] for start in (0, 4)]
    step = jit_step(task, plan)
    states = [init_state(task, plan, config.seed) for _ in range(4)]
    first, second = (step(state, batches[0]) for state in states[:2])
    chex.assert_trees_all_equal(first, second)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states[0].params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    for state, name in zip(states[2:], ("step", "key"), strict=True):
        other = state._replace(**{name: getattr(state, name) + 1})
        losses = np.asarray(step(other, batches[0])[1].layer_losses)
        same = np.asarray(first[1].layer_losses)
        assert losses[0] != same[0], "step and seed draw the noise"
    assert int(step(first[0], batches[1])[0].step) == 2
