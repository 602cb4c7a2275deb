"""The task of language: packed losses, masks, layers, positions, low-rank changes
and noise."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.language.conftest import TINY, answer_logs, wide
from tests.reference import compiled
from unroll_jax.train.core.evaluate import evaluate, read
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, train_step
from unroll_jax.train.core.task import Trial
from unroll_jax.train.tasks.language import instructions
from unroll_jax.train.tasks.language.answers import PackedBatch
from unroll_jax.train.tasks.language.model import layers_read
from unroll_jax.train.tasks.language.options import DescentOptions
from unroll_jax.train.tasks.language.task import choose, make

pytestmark = pytest.mark.xdist_group("language")


@pytest.fixture(scope="module")
def started(task_of):
    task, rng = task_of(train_gamma=0.0), np.random.default_rng(1)
    draw = lambda leaf: rng.normal(scale=0.5, size=leaf.shape)
    shapes = jax.eval_shape(task.init, jax.random.key(1))
    params = jax.device_put(jax.tree.map(draw, shapes))
    return task, params, wide(params["decoder"])


@pytest.fixture(scope="module")
def alone(started):
    """Of each text of the test split by itself: losses of its answer, (L + 1,
    tokens), and words that layers name."""
    task, _, decoder = started
    data = instructions.load(task.options.data, log=lambda line: None)
    data.keep("test", task.options.test_examples)
    losses, words = [], []
    for tokens, first in task.inner.data.answers.encode(data.whole("test")):
        logs = answer_logs(decoder, task.inner.data.source.config, tokens, first)
        losses.append(-logs[:, np.arange(logs.shape[1]), tokens[first:]])
        words.append(logs.argmax(axis=-1))
    return losses, words


@pytest.fixture(scope="module")
def measured(started):
    """Losses of the rows of the test split, and their counts."""
    task, params, _ = started
    rows = task.inner.data.packed.whole("test")

    @compiled
    def run(params, rows):
        drawn = task.corrupt(rows, task.trial, jax.random.key(0))
        return task.losses(params, drawn, task.trial)[0], task.counts(drawn)

    return run(params, rows)


def test_evaluation_figures_are_those_of_every_text_alone(
    started, alone, measured, tmp_path
):
    """And the losses of training, of rows of several texts."""
    task, params, _ = started
    text_losses, words = alone
    every = np.concatenate(text_losses, axis=1)
    mean = every.mean(axis=1)
    sums, counts = measured
    assert task.inner.data.packed.whole("test").segments.max() > 1
    assert_allclose(sums.sum(axis=0) / counts.sum(), mean, rtol=2e-5)
    plan = make_plan(task)
    opt_state = init_state(task, plan, 0).opt_state
    figures = evaluate(task, plan, params, opt_state, tmp_path)
    losses = read(task, params, "test", task.trial)["losses"]
    assert_allclose(losses.mean(axis=0), mean, rtol=2e-5)
    of_texts = np.stack([text.mean(axis=1) for text in text_losses])
    quotients = lambda rows: rows[:, 1:] / rows[:, :-1]
    assert_allclose(quotients(losses), quotients(of_texts), rtol=5e-5)
    assert (figures["num_tokens"], figures["num_examples"]) == (every.shape[1], 12)
    assert figures["perplexity"]["0.0"] == pytest.approx(np.exp(mean[-1]), rel=2e-5)
    accuracy = figures["accuracy"]
    assert accuracy["0.0"] == pytest.approx(1.0 - figures["error_rates"][-1])
    named = np.concatenate(words, axis=1)
    shares = np.mean(named == named[-1], axis=1)
    assert_allclose(figures["acceptance"]["0.0"], shares, rtol=1e-6)
    assert figures["area"] == pytest.approx((accuracy["0.0"] + accuracy["1.0"]) / 2)


def test_layers_that_are_read_are_counted_back_from_the_last():
    for every, expected in {
        1: (0, 1, 2, 3, 4, 5, 6, 7),
        3: (0, 1, 4, 7),
        7: (0, 7),
    }.items():
        assert layers_read(DescentOptions(every=every), 7) == expected


def test_chosen_positions_stand_for_all_of_a_row():
    weights = np.zeros((2, 8), np.float32)
    weights[0, :6], weights[1, 2] = 1.0, 1.0

    @compiled
    def draw(key):
        keys = jax.random.split(key, 2000)
        return jax.vmap(lambda key: choose(key, weights, 3))(keys)

    chosen, shares = draw(jax.random.key(0))
    assert chosen.shape == (2000, 2, 3)
    assert_allclose(shares.sum(axis=-1), np.tile([6.0, 1.0], (2000, 1)))
    assert set(np.unique(chosen[:, 0])) == set(range(6))
    assert np.all(np.diff(np.sort(chosen[:, 0])) > 0), "each once"
    # the mean of 0..5 and place 2
    sums = np.sum(chosen * shares, axis=-1)
    assert_allclose(sums[:, 1], 2.0)
    error = 5 * sums[:, 0].std() / 2000**0.5
    assert_allclose(sums[:, 0].mean(), 15.0, atol=error)


def test_the_last_layer_is_read_everywhere_others_where_drawn(
    started, measured, task_of
):
    task, params, _ = started
    part = task_of(train_gamma=0.0, descent=DescentOptions(positions=4))
    assert part.options.depth is None, "it depends on the layers that are read"
    rows, (whole, _) = task.inner.data.packed.whole("test"), measured

    @compiled
    def measure(params, key):
        drawn = part.corrupt(PackedBatch(*map(jnp.asarray, rows)), part.trial, key)
        return part.losses(params, drawn, part.trial)[0], drawn.chosen

    first, chosen = measure(params, jax.random.key(0))
    _, others = measure(params, jax.random.key(1))
    assert chosen.shape[1] == -(-rows.places.shape[1] // 4)
    assert not np.array_equal(chosen, others), "every step draws its own"
    assert_allclose(first[:, -1], whole[:, -1], rtol=1e-5)
    assert not np.allclose(first[:, 0], whole[:, 0], rtol=1e-3)
    assert_allclose(first[:, :-1], whole[:, :-1], rtol=0.5)


def test_noise_has_the_stated_strength_in_training(task_of):
    for noise, expected in (("deviation", 0.5), ("variance", 0.5**0.5)):
        task = task_of(train_gamma=0.5, noise=noise)
        rows = task.inner.data.packed.whole("train")
        draw = compiled(functools.partial(task.corrupt, rows, task.trial))
        drawn = draw(jax.random.key(0)).noise
        assert drawn.shape == (*rows.tokens.shape, 8)
        assert np.std(drawn) == pytest.approx(expected, rel=0.03)
    without = functools.partial(task.corrupt, rows, Trial(0.0))
    assert jax.eval_shape(without, jax.random.key(0)).noise is None
    assert task.inner.data.embedding_std == 1.0, "as drawn embeddings start"


def test_low_rank_changes_start_from_the_decoder_and_alone_move(started, measured):
    base, params, _ = started
    model = dataclasses.replace(TINY, lora_rank=2)
    config = dataclasses.replace(base.options, method="plain", model=model)
    # past the check: changes are for given decoders
    task = make(config, base.inner.data)._replace(
        pretrained=lambda: jax.device_put(jax.device_get(params["decoder"]))
    )
    plan, rows = make_plan(task), base.inner.data.packed.whole("test")
    state = init_state(task, plan, 0)
    step = jax.jit(lambda state: train_step(task, plan, state, rows))
    second, metrics = step(state)
    after, _ = step(second)
    losses, counts = measured
    expected = losses.sum(axis=0) / counts.sum()
    assert_allclose(metrics.layer_losses, expected, rtol=1e-6)
    same = jax.tree.map(np.array_equal, state.params, after.params)
    assert all(jax.tree.leaves(same["decoder"]))
    assert not any(jax.tree.leaves(same["changes"]))
    moments = [leaf.shape for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim > 0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.params["changes"])]
    assert sorted(moments) == sorted(2 * shapes), "two moments of each that moves"


def test_dropout_is_of_steps_of_training_and_not_of_readings(started):
    base, params, _ = started
    task = base.make(dataclasses.replace(base.options, dropout=0.5))
    rows = next(task.batches(0, 0, None))
    training = base.trial._replace(augment=True)

    @compiled
    def losses(params, key):
        def of(one, trial):
            return one.losses(params, one.corrupt(rows, trial, key), trial)[0]

        return of(base, training), of(task, base.trial), of(task, training)

    plain, reading, step = losses(params, jax.random.key(0))
    assert_array_equal(plain, reading)
    assert_allclose(plain[:, 0], step[:, 0], rtol=1e-6)
    assert not np.any(plain[:, 1:] == step[:, 1:])
