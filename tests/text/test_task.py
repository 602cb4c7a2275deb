"""Losses of every layer, the noise, and what training leaves as it was."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

from tests.data.pretrained.conftest import WORDS
from unroll_jax.train.core.evaluate import NOISE_SEED, read, validate
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, jit_step
from unroll_jax.train.core.task import Trial
from unroll_jax.train.tasks.common import gaussian
from unroll_jax.train.tasks.text.model import build_module
from unroll_jax.train.tasks.text.options import EncoderOptions, UnrolledConfig
from unroll_jax.train.tasks.text.task import READ_TOGETHER, rebuild
from unroll_jax.train.tasks.text.tokens import (
    TokenBatch,
    area_under,
    noise_figures,
    noise_variance,
)

pytestmark = pytest.mark.xdist_group("text-runs")  # whose tasks are compiled once
SHARES = {0.0: 9, 0.6: 8, 2.0: 5}  # by gamma, of ten texts those that are right


def jnp_batch(batch):
    return jax.device_put(TokenBatch(*batch))


def first_batch(data, **options):
    return jnp_batch(
        next(data.tokens.batches("train", **{"batch_size": 8, "seed": 0, **options}))
    )


def cross_entropies(logits, labels):
    logs = log_softmax(np.asarray(logits, np.float64), axis=-1)
    return -logs[:, np.arange(len(labels)), np.asarray(labels)].T


@pytest.mark.slow
def test_losses_are_cross_entropies_of_the_perturbed_texts(built, data_of, experiment):
    """In training and in evaluations."""
    task, params = built(experiment)
    data = data_of(experiment)
    (batch,) = map(jnp_batch, data.tokens.examples("test", batch_size=READ_TOGETHER))
    shape, std = (*batch.tokens.shape, 8), data.embedding_std
    module = build_module(task.options, data)

    @jax.jit
    def expected(params, noise):
        inputs = {"token_types": batch.token_types, "perturbation": noise}
        return module.apply(params, batch.tokens, batch.mask, **inputs)

    key = jax.random.key(1)
    for trial in (task.trial, Trial(0.0)):
        gamma = trial.gamma
        drawn = task.corrupt(batch, trial, key)
        actual, _ = jax.jit(task.losses, static_argnums=2)(params, drawn, trial)
        logits = expected(params, gaussian(key, shape, (gamma * std) ** 2))
        wanted = cross_entropies(logits, batch.labels)
        assert_allclose(actual, wanted, rtol=1e-5, err_msg=str(gamma))
    # Evaluations add the same noise to every model, scaled by gamma.
    unit = jax.random.normal(jax.random.fold_in(jax.random.key(NOISE_SEED), 0), shape)
    for gamma in (0.5, 1.0):
        wanted = cross_entropies(expected(params, gamma * std * unit), batch.labels)
        losses = read(task, params, "test", Trial(gamma))["losses"]
        assert_allclose(losses, wanted, rtol=1e-4)


@pytest.mark.parametrize(("noise", "power"), [("deviation", 2), ("variance", 1)])
def test_gamma_times_the_std_is_the_strength_of_noise(small, noise, power):
    options = small("text-ut", noise=noise)
    for gamma in (0.0, 0.5, 2.0):
        assert noise_variance(options, gamma, 3.0) == (3.0 * gamma) ** power


def test_the_std_is_that_of_embeddings_of_train_tokens(built, data_of, write_folder):
    fields = {"model": UnrolledConfig(embeddings=str(write_folder()))}
    _, params = built("text-ut", **fields)
    material = data_of("text-ut", **fields)
    assert_array_equal(
        params["params"]["embeddings"]["word"]["embedding"], material.table
    )
    tokens = np.concatenate(
        [
            batch.tokens[batch.mask]
            for batch in material.tokens.examples("train", batch_size=7)
        ]
    )
    assert material.embedding_std == pytest.approx(
        np.std(material.table[tokens].astype(np.float64)), rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [True, False])
def test_given_embeddings_stay_where_they_are_frozen(
    task_of, data_of, write_folder, frozen
):
    folder = str(write_folder(config={"vocab_size": 20}))
    model = UnrolledConfig(embeddings=folder, frozen=frozen)
    task, data = (
        of("text-ut", model=model, method="plain") for of in (task_of, data_of)
    )
    plan = make_plan(task)
    state, step = init_state(task, plan, 0), jit_step(task, plan)
    table_of = lambda state: np.array(
        state.params["params"]["embeddings"]["word"]["embedding"]
    )
    assert_array_equal(table_of(state), data.table)
    for number in range(2):  # the first has a rate of almost nothing
        state, _ = step(state, first_batch(data, start_step=number))
    assert np.array_equal(table_of(state), data.table) == frozen
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.opt_state)]
    moments = 0 if frozen else 2
    assert shapes.count(data.table.shape) == moments, "of what is trained only"


def test_the_types_of_the_tokens_of_pairs_reach_the_encoder(
    built, data_of, write_folder, write_pairs
):
    rows = [
        ("a film that ends", "good", "neutral"),
        ("good", "a long film", "entailment"),
    ] * 4
    model = EncoderOptions(pretrained=str(write_folder()))
    fields = {"model": model, "batch_size": 3, "max_length": 12, "train_gamma": 0.0}
    fields |= write_pairs(rows)
    task, params = built("text-encoder", **fields)
    data = data_of("text-encoder", **fields)
    module, batch = build_module(task.options, data), first_batch(data, batch_size=3)
    ends = np.asarray(batch.tokens) == WORDS.index("[SEP]")
    # behind the first separator
    behind = np.asarray(batch.mask) & (np.cumsum(ends, axis=1) - ends > 0)

    @jax.jit
    def run(params, types):
        logits = module.apply(params, batch.tokens, batch.mask, token_types=types)
        drawn = task.corrupt(batch, task.trial, None)
        entropies = task.read(params, drawn, task.trial)["entropies"]
        return logits, task.losses(params, drawn, task.trial)[0], entropies.T

    logits, losses, entropies = run(params, jnp.int32(behind))
    untyped, *_ = run(params, jnp.int32(0 * behind))
    assert not np.allclose(logits, untyped, rtol=1e-2)
    assert_allclose(losses, cross_entropies(logits, batch.labels), rtol=1e-4)
    logs = log_softmax(np.asarray(logits, np.float64), axis=-1)
    expected = -np.sum(np.exp(logs) * logs, axis=-1)
    assert_allclose(entropies, expected, rtol=1e-4)


def test_validation_is_at_the_noise_of_training(built):
    task, params = built("text-ut")
    plan = make_plan(task)
    row, _ = validate(task, plan, params, init_state(task, plan, 0).opt_state, 0)
    losses = read(task, params, "validation", Trial(0.6))["losses"].mean(axis=0)
    assert_allclose(row["layer_losses"], losses, rtol=1e-5)


def test_the_area_is_that_of_trapezoids():
    area = area_under({2.0: 0.5, 0.0: 0.9, 0.5: 0.8})
    assert area == pytest.approx(0.5 * 0.85 + 1.5 * 0.65)
    assert area_under({gamma / 4: 1.0 for gamma in range(9)}) == pytest.approx(2.0)
    assert area_under({0.5: 0.9}) is None


def test_figures_of_noise_are_of_the_test_gammas(task_of):
    """The noise of training, 0.6, is no place of the area."""
    task = task_of("text-ut")
    right = {gamma: np.arange(10)[:, None] < [5, n] for gamma, n in SHARES.items()}
    readings = {Trial(gamma): {"right": each} for gamma, each in right.items()}
    floors = {"chance": 0.5}
    figures = noise_figures(task.options, readings, 3.0, floors)
    assert figures["area"] == pytest.approx(0.9 + 0.5)
    assert figures["error_rates"] == pytest.approx([0.5, 0.2])
    gammas = ("0.0", "0.6", "2.0")
    assert figures["floors"] == {"chance": dict.fromkeys(gammas, 0.5)}
    judged = {"feasible": True, "accuracy": {"0.6": 0.8}, "method": "plain"}
    levels = {"train_gamma": 0.6, "test_gammas": [0.0, 2.0]}
    line = task.summary(figures | judged | levels)
    assert line.startswith("accuracy 80.0% at gamma 0.6, area 1.400 over gamma 0 to 2")


def test_a_model_is_rebuilt_from_json_without_its_texts(task_of, experiment):
    task = task_of(experiment)
    spec = json.loads(json.dumps(task.spec()))
    again = rebuild(task.options, spec)
    assert again.spec() == task.spec()
    shapes = [jax.eval_shape(each.init, jax.random.key(0)) for each in (task, again)]
    chex.assert_trees_all_equal_shapes_and_dtypes(*shapes)
