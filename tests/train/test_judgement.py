"""How checkpoints are ranked, and the least cost of slack at which multipliers come to rest."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.commands import read
from tests.train.conftest import evaluated_again, traced_task
from unroll_jax.constrained import feasibility_report
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.constraints import INFEASIBLE, DescentConstraints
from unroll_jax.train.step import init_state, validate
from unroll_jax.train.tasks.common import Trial

pytestmark = pytest.mark.xdist_group("video-runs")

# Means at layers 0..2 of two samples; alpha is 0.5 and the reference 1.
FEASIBLE, EARLY, LATE = (
    np.array([[0.9 + spread, last * 2.0, last] for spread in (-0.1, 0.1)]) for last in (0.2, 0.4, 0.1)
)
EARLY, LATE = EARLY + np.array([0.0, -0.3, 0.2]), LATE + np.array([0.0, 0.4, 0.0])


@pytest.fixture
def judged(changed):
    def judge(losses, **fields):
        options = {"constraints.alpha": (0.5,), "constraints.reference": 1.0, "train_gamma": 0.01, **fields}
        config = changed(**options)
        objective = of_two_layers(config)
        return config, *objective.judge(0, losses, objective.init())

    return judge


def of_two_layers(config):
    return DescentConstraints(config, num_layers=2, steps_an_epoch=16, num_steps=config.steps)


def _violations(losses):
    means = losses.mean(axis=0)
    return np.array([means[0] - 1.0, means[1] - 0.5 * means[0], means[2] - 0.5 * means[1]])


def test_what_is_feasible_comes_before_what_is_not_whatever_the_loss(judged):
    for fields in ({}, {"constraints.resilience": 2.0}):
        _, row, score = judged(FEASIBLE, **fields)
        assert row["feasible"]
        assert score == pytest.approx(-0.2)
        assert judged(LATE, **fields)[2] < INFEASIBLE < score


def test_hard_constraints_rank_by_the_worst_excess(judged):
    for losses in (EARLY, LATE):
        _, row, score = judged(losses)
        means = losses.mean(axis=0)
        excess = max(_violations(losses) / np.array([1.0, 0.5 * means[0], 0.5 * means[1]]))
        assert row["worst_excess"] == pytest.approx(excess, rel=1e-5)
        assert score == pytest.approx(INFEASIBLE - excess)
        assert "relaxed_loss" not in row


def test_resilience_ranks_by_the_loss_with_the_cost_of_slack(judged):
    scores = []
    for losses in (EARLY, LATE):
        config, row, score = judged(losses, **{"constraints.resilience": 2.0})
        relaxed = losses[:, -1].mean() + np.sum((np.maximum(_violations(losses), 0.0)) ** 2)
        assert row["relaxed_loss"] == pytest.approx(relaxed, rel=1e-5)
        assert score == pytest.approx(INFEASIBLE - relaxed)
        assert config.judge(row).relaxed == row["relaxed_loss"]
        scores.append(score)
    assert scores[1] > scores[0]


def test_plain_training_ranks_by_the_loss_alone(judged):
    assert judged(LATE, method="plain")[2] == pytest.approx(-0.1)


LEAST = {"sgd": ({}, 0.05), "pi": ({}, 1.05), "pi, half the gain": ({"dual.proportional_gain": 0.5}, 0.55)}


@pytest.mark.parametrize("share", [1.02, 0.98])
@pytest.mark.parametrize("name", LEAST)
def test_a_resilience_is_refused_exactly_where_multipliers_would_swing_for_ever(changed, name, share):
    fields, least = LEAST[name]
    fields = {"dual.optimizer": name.split(",")[0], "dual.learning_rate": 0.1, **fields}
    config = changed(**fields, **{"constraints.resilience": share * least})
    dual = of_two_layers(config).ascent
    last = _run_out(lambda state: dual.update(state, jnp.full(3, 0.3)), dual.init(3)).multipliers
    assert np.allclose(last, 0.3 * share * least, rtol=1e-3) == (share > 1.0)
    if share > 1.0:
        config.check()
        return
    with pytest.raises(UserError, match=r"constraints.resilience must be above .*, or multipliers will oscillate"):
        config.check()
    dataclasses.replace(config, method="plain").check()


def _run_out(move, state):
    return jax.jit(lambda: jax.lax.scan(lambda state, _: (move(state), None), state, length=2000)[0])()


BINDS = {"mean": {}, "tail": {"constraints.bind": "tail", "constraints.level": 0.9}}


@pytest.mark.usefixtures("in_memory")
def test_feasibility_is_judged_by_what_is_bound(changed, clips, many, tmp_path):
    fields = {"constraints.alpha": (0.05,), "constraints.reference": None, "train_gamma": 0.5}
    task, worst = traced_task(changed(**fields), clips), {}
    state = init_state(task)
    _, losses = task.evaluate(state.params, tmp_path)
    for bind, bound in BINDS.items():
        config = changed(**bound, **fields)
        worst[bind] = np.array(of_two_layers(config).report(losses, state.moving)["violations"][1:], float)
    assert np.all(worst["tail"] > worst["mean"])
    before = read(many / "evaluation.json")
    again = evaluated_again(shutil.copytree(many, tmp_path / "tail"))
    assert (again["bind"], again["violations"]) == ("tail", before["violations"])


def test_validation_judges_as_the_report_on_the_same_samples_does(changed, clips):
    for bind, bound in BINDS.items():
        task = traced_task(changed(**bound, **{"constraints.alpha": (0.3,)}), clips)
        state, objective = init_state(task), task.training.objective
        reading = task.reading(state.params, "validation", Trial(task.config.train_gamma))
        report = feasibility_report(
            jnp.asarray(reading.losses), state.moving.multipliers, objective.stated, reduction=objective.reduction
        )
        row, _ = validate(task, state)
        excess = np.max(np.asarray(report.violations) / np.asarray(report.bounds))
        np.testing.assert_allclose(row["worst_excess"], excess, rtol=1e-5, err_msg=bind)
        assert row["feasible"] == report.feasible, bind
        assert excess > 0.0, f"the case violates something: {bind}"
