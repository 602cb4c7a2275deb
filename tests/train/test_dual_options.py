"""Multipliers and slacks under every option, replayed in NumPy from the violations of the steps."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.constrained import init_state, make_step
from train.errors import UserError
from train.video.config import check_config
from train.video.recipe import video_recipe
from train.video.task import video_task

STEPS, EPOCH, RATE = 9, 2, 0.3  # 64 sequences in batches of 32
SGD = {"dual.optimizer": "sgd", "dual.learning_rate": RATE}
EXPLICIT = {"constraints.resilience": 2.0, "constraints.slacks": "explicit", "constraints.slack_rate": 0.1}

VARIANTS = {
    "nu_pi": {"dual.optimizer": "nu_pi", "dual.learning_rate": RATE, "dual.nu": 0.4},
    "every 3 batches": {**SGD, "dual.every": 3},
    "every epoch, smoothed": {**SGD, "dual.every": "epoch", "dual.smoothing": 0.7},
    "smoothed, resilient, after a warm-up": {
        **SGD,
        "dual.smoothing": 0.5,
        "constraints.resilience": 2.0,
        "constraints.warmup_steps": 2,
    },
    "capped, then frozen": {**SGD, "dual.cap": 0.4, "dual.freeze_after": 5},
    "one frozen where it starts": {**SGD, "dual.start": (0.0, 0.5, 0.25), "dual.frozen": (1,)},
    "explicit slacks": {**SGD, **EXPLICIT},
    "explicit slacks that go on": {**SGD, **EXPLICIT, "constraints.slack_restarts": False},
    "explicit slacks, not normalised": {**SGD, **EXPLICIT, "constraints.normalise": False},
    "explicit slacks, started, after a warm-up": {
        **SGD,
        **EXPLICIT,
        "dual.start": (2.0,),
        "constraints.warmup_steps": 3,
    },
    "scaled": {**SGD, "constraints.scale": True},
    "scaled, started": {**SGD, "constraints.scale": True, "dual.start": (0.5,)},
    "scaled, resilient": {**SGD, "constraints.scale": True, "constraints.resilience": 2.0},
    "scaled, explicit slacks, tails": {**SGD, **EXPLICIT, "constraints.scale": True, "constraints.bind": "tail"},
}


@pytest.fixture
def run(changed, clips):
    """``run(fields)``: configuration, metrics of every step, and the last state."""

    def go(fields, steps=STEPS):
        tight = {"constraints.reference": 0.4, "constraints.alpha": (0.6,), "primal.learning_rate": 0.02}
        config = changed(**{"steps": steps, "batch_size": 32, **tight, **fields})
        task = video_task(config, clips)
        assert task.steps_an_epoch == EPOCH
        state, step, rows = init_state(config, task), make_step(config, task), []
        for _, batch in zip(range(steps), clips.batches("train", batch_size=32, seed=0), strict=False):
            state, metrics = step(state, batch)
            rows.append(jax.device_get(metrics))
        return config, rows, state

    return go


def _replay(config, rows):
    """Multipliers and slacks before every step, in plain units; SGD and nu-PI, written out."""
    dual, settings = config.dual, config.constraints
    sizes = np.abs(rows[0].layer_losses.astype(np.float64)) if settings.scale else np.ones(3)
    lam, slack = np.broadcast_to(np.array(dual.start), 3).astype(float), np.zeros(3)
    beta, explicit = settings.resilience, settings.slacks == "explicit"
    waiting, average, number, before = [], 0.0, 0, 0.0
    found = []
    for step, row in enumerate(rows):
        shown = slack if explicit else lam / beta if beta else None
        found.append((lam / sizes, None if shown is None else shown * sizes))
        unmet = row.violations / sizes - (slack if explicit else 0.0)
        if explicit:
            pressing = lam if step >= settings.warmup_steps else np.zeros(3)
            scale = 1 + pressing.sum() if settings.normalise else 1.0
            slack = np.maximum(slack - settings.slack_rate * (beta * slack - pressing) / scale, 0)
            if settings.slack_restarts and (step + 1) % EPOCH == 0:
                slack = np.zeros(3)
        if step < settings.warmup_steps or (dual.freeze_after is not None and step >= dual.freeze_after):
            continue
        waiting.append(unmet)
        if len(waiting) < (EPOCH if dual.every == "epoch" else dual.every):
            continue
        pressure, waiting = np.mean(waiting, axis=0), []
        if dual.smoothing:
            number += 1
            average = dual.smoothing * average + (1 - dual.smoothing) * pressure
            pressure = average / (1 - dual.smoothing**number)
        if beta and not explicit:
            pressure = pressure - lam / beta
        raised = lam + RATE * pressure
        if dual.optimizer == "nu_pi":
            smooth = dual.nu * before + (1 - dual.nu) * pressure
            raised, before = raised + dual.proportional_gain * (smooth - before), smooth
        raised = np.clip(raised, 0, dual.cap)
        lam = np.where(np.isin(np.arange(3), dual.frozen), lam, raised)
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_multipliers_and_slacks_are_those_of_the_options_written_out(run, name):
    config, rows, _ = run(VARIANTS[name])
    for row, (multipliers, slacks) in zip(rows, _replay(config, rows), strict=True):
        np.testing.assert_allclose(row.multipliers, multipliers, rtol=2e-4, atol=1e-5)
        if slacks is None:
            assert row.slacks is None
        else:
            np.testing.assert_allclose(row.slacks, slacks, rtol=2e-4, atol=1e-5)
    assert max(row.multipliers[1] for row in rows) > 0.2, "the case never raised a multiplier"
    if config.constraints.slacks == "explicit":
        assert max(row.slacks.max() for row in rows) > 1e-3, "the case never moved a slack"


@pytest.mark.parametrize("bind", ["mean", "tail", "positive"])
def test_violations_are_those_of_the_samples_in_numpy(changed, clips, bind):
    config = changed(
        **{"constraints.bind": bind, "constraints.level": 0.7, "constraints.leeway": 0.01, "batch_size": 8}
    )
    task = video_task(config, clips)
    state, batch = init_state(config, task), next(clips.batches("train", batch_size=8, seed=0))
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), 0)
    samples = np.asarray(task.sample_losses(state.params, task.draw(batch, key)), np.float64)
    _, metrics = make_step(config, task)(state, batch)
    kept = 0.78 * (1 - np.array([0.2, 0.05]))
    each = np.column_stack([samples[:, 0] - 8.0, samples[:, 1:] - kept * samples[:, :-1]])
    worst = -np.sort(-each, axis=0)  # a share 0.3 of 8 samples: the two worst, and 0.4 of the third
    expected = {
        "mean": each.mean(axis=0),
        "tail": (worst[0] + worst[1] + 0.4 * worst[2]) / 2.4,
        "positive": np.maximum(each, 0).mean(axis=0) - 0.01,
    }[bind]
    np.testing.assert_allclose(metrics.violations, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics.layer_losses, samples.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("bind", ["mean", "tail", "positive"])
def test_the_gradient_is_that_of_the_weighted_samples(changed, clips, bind):
    multipliers = (0.5, 2.0, 1.0)
    fields = {"dual.start": multipliers, "constraints.bind": bind, "constraints.level": 0.5, "batch_size": 8}
    config = changed(**fields, **{"constraints.alpha": (0.6,), "constraints.reference": 0.4})
    task = video_task(config, clips)
    state, batch = init_state(config, task), next(clips.batches("train", batch_size=8, seed=0))
    drawn = task.draw(batch, jax.random.fold_in(jax.random.wrap_key_data(state.key), 0))
    samples, pull = jax.vjp(lambda params: task.sample_losses(params, drawn), state.params)
    kept = 0.4 * (1 - np.array([0.2, 0.05]))
    f = np.asarray(samples)
    each = np.column_stack([f[:, 0] - 0.4, f[:, 1:] - kept * f[:, :-1]])
    rank = np.argsort(np.argsort(-each, axis=0), axis=0)
    share = {"mean": np.full((8, 3), 1 / 8), "tail": (rank < 4) / 4, "positive": (each > 0) / 8}[bind]
    pressed = share * np.array(multipliers)
    weights = pressed.copy()
    weights[:, -1] += 1 / 8
    weights[:, :-1] -= kept * pressed[:, 1:]
    (gradient,) = pull(jnp.asarray(weights / (1 + sum(multipliers)), jnp.float32))
    norm = np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(gradient)))
    _, metrics = make_step(config, task)(state, batch)
    np.testing.assert_allclose(metrics.grad_norm, norm, rtol=1e-4)
    if bind != "mean":
        assert 0 < np.sum(share > 0) < share.size, "the case binds some of the samples"


def test_the_warm_up_is_plain_risk_also_where_multipliers_start_above_0(run):
    _, rows, warm = run({**SGD, "dual.start": (2.0,), "constraints.warmup_steps": 3}, 3)
    _, _, plain = run({"method": "erm"}, 3)
    for one, two in zip(jax.tree.leaves(warm.params), jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(warm.multipliers, np.full(3, 2.0))
    np.testing.assert_allclose([row.lagrangian for row in rows], [row.layer_losses[-1] for row in rows], rtol=1e-6)
    _, _, after = run({**SGD, "dual.start": (2.0,), "constraints.warmup_steps": 3}, 4)
    assert np.all(after.multipliers != 2.0)


def test_an_epoch_that_never_ends_is_refused(changed, clips):
    with pytest.raises(UserError, match=r"--dual.every epoch moves no multiplier: an epoch has 16 steps"):
        video_task(changed(**{"dual.every": "epoch"}), clips)
    video_task(changed(**{"dual.every": "epoch"}, steps=16), clips)
    with pytest.raises(UserError, match=r"an epoch has 16 steps, multipliers may move in 15 .*--dual.freeze-after"):
        video_task(changed(**{"dual.every": "epoch", "dual.freeze_after": 15}, steps=16), clips)
    video_task(changed(**{"dual.every": "epoch", "dual.freeze_after": 15, "dual.start": (1.0,)}, steps=16), clips)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dual.every": 4, "dual.freeze_after": 3}, "--dual.every must be at most the 3 steps"),
        ({"dual.every": 4, "constraints.warmup_steps": 3}, "--dual.every must be at most the 3 steps"),
        ({"constraints.warmup_steps": 3, "dual.freeze_after": 3}, "--dual.freeze-after must be above"),
        ({"dual.freeze_after": 0}, "--dual.freeze-after must be above constraints.warmup-steps=0, unless"),
    ],
    ids=str,
)
def test_multipliers_that_start_at_0_and_never_move_are_refused(run, changed, fields, words):
    with pytest.raises(UserError, match=words):
        check_config(changed(**fields))
    assert not np.any(run(fields, 6)[2].multipliers), "the case does move one"
    for allowed in ({"dual.start": (0.5,)}, {"method": "erm"}):
        check_config(changed(**fields, **allowed))


def test_a_step_an_epoch_on_tails_takes_the_mean_of_the_batches_tails_as_its_help_says(run):
    fields = {**SGD, "constraints.bind": "tail", "dual.every": "epoch"}
    config, rows, state = run(fields, EPOCH)
    mean = np.mean([row.violations for row in rows], axis=0)
    np.testing.assert_allclose(state.multipliers, np.maximum(RATE * mean, 0.0), rtol=1e-4, atol=1e-6)
    assert "mean of the batches' tails" in inspect.getsource(type(config.dual))


def test_an_optimizer_may_be_any_factory_of_a_transformation(run):
    _, _, named = run(SGD, 4)
    _, _, made = run({**SGD, "dual.optimizer": "optax:sgd"}, 4)
    assert np.any(named.multipliers > 0.0)
    np.testing.assert_array_equal(made.multipliers, named.multipliers)
    _, _, another = run({**SGD, "dual.optimizer": "optax:rmsprop"}, 4)
    assert np.any(another.multipliers != named.multipliers)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere:sgd", "cannot make it .*nowhere"),
        ("optax:nothing", "cannot make it .*nothing"),
        (":sgd", "cannot make it"),
        ("optax:", "cannot make it"),
        ("math:sqrt", "made .*, which is no optax gradient transformation"),
    ],
)
def test_a_path_that_makes_no_optimizer_is_one_line(changed, clips, path, words):
    config = changed(**{"dual.optimizer": path})
    check_config(config)
    with pytest.raises(UserError, match=f"--dual.optimizer {path}.*({words})") as caught:
        video_recipe(config, video_task(config, clips), clips)
    assert "\n" not in str(caught.value)


def test_restarts_that_would_keep_slacks_at_0_are_refused(changed, clips):
    fields = {"constraints.slacks": "explicit", "constraints.resilience": 2.0, "dual.start": (1.0,), "batch_size": 33}
    with pytest.raises(UserError, match=r"slack-restarts sets explicit slacks to 0 in every step: .*no-slack-restarts"):
        video_task(changed(**fields), clips)
    for allowed in ({"batch_size": 32}, {"constraints.slack_restarts": False}, {"method": "erm"}):
        video_task(changed(**{**fields, **allowed}), clips)


def test_layers_are_frozen_by_their_number_also_without_a_bound_on_the_input(changed, clips):
    fields = {"constraints.reference": None, "dual.start": (0.5, 0.25), "dual.frozen": (2,), "batch_size": 8}
    config = changed(**fields, **SGD)
    task = video_task(config, clips)
    batch = next(clips.batches("train", batch_size=8, seed=0))
    state, _ = make_step(config, task)(init_state(config, task), batch)
    assert state.multipliers[1] == 0.25
    assert state.multipliers[0] != 0.5


def test_without_a_frozen_or_capped_multiplier_nothing_differs_from_the_defaults(run):
    _, plain, last = run({})
    _, said, other = run({"dual.cap": 1e6, "dual.smoothing": 0.0, "dual.every": 1, "constraints.level": 0.5})
    for one, two in zip(plain, said, strict=True):
        np.testing.assert_array_equal(one.multipliers, two.multipliers)
        np.testing.assert_array_equal(one.layer_losses, two.layer_losses)
    for one, two in zip(jax.tree.leaves(last.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_array_equal(one, two)
    assert (last.slacks, last.sizes, last.average) == (None, None, None)


def test_duals_losses_and_sizes_stay_float32_where_layers_compute_in_bfloat16(run):
    _, rows, state = run({**VARIANTS["scaled, explicit slacks, tails"], "model.dtype": "bfloat16", "average": 0.5}, 4)
    for leaf in jax.tree.leaves((state.params, state.dual, state.slacks, state.sizes, state.average, rows)):
        assert leaf.dtype in (jnp.float32, jnp.int32)
        assert np.all(np.isfinite(leaf))
    _, wide, _ = run(VARIANTS["scaled, explicit slacks, tails"], 4)
    np.testing.assert_allclose(rows[-1].layer_losses, wide[-1].layer_losses, rtol=0.05)
    np.testing.assert_allclose(rows[-1].multipliers, wide[-1].multipliers, rtol=0.1, atol=0.02)
