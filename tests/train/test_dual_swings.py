"""The least cost of slack at which multipliers and slacks come to rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.constrained.duals import multiplier_ascent, objective_value, slack_rule
from train.errors import UserError
from train.video.config import check_config
from train.video.task import video_task

LEAST = {
    "sgd": ({}, 0.05),
    "pi": ({}, 1.05),
    "pi, half the gain": ({"dual.proportional_gain": 0.5}, 0.55),
    "nu_pi": ({}, 1.05),
    "nu_pi, slow": ({"dual.nu": 0.5}, 0.05 + 1 / 3),
    "nu_pi, ahead": ({"dual.nu": -0.5}, 3.05),
}


@pytest.mark.parametrize("share", [1.02, 0.98])
@pytest.mark.parametrize("name", LEAST)
def test_a_resilience_is_refused_exactly_where_multipliers_would_swing_for_ever(changed, clips, name, share):
    fields, least = LEAST[name]
    fields = {"dual.optimizer": name.split(",")[0], "dual.learning_rate": 0.1, **fields}
    config = changed(**fields, **{"constraints.resilience": share * least})
    dual = multiplier_ascent(config, video_task(config, clips).steps_an_epoch)
    last = _run_out(lambda state: dual.update(state, jnp.full(3, 0.3)), dual.init(3)).multipliers
    assert np.allclose(last, 0.3 * share * least, rtol=1e-3) == (share > 1.0)
    if share > 1.0:
        check_config(config)
        return
    with pytest.raises(UserError, match=r"--constraints.resilience must be above .*, or multipliers swing for ever"):
        check_config(config)
    check_config(dataclasses.replace(config, method="erm"))


@pytest.mark.parametrize("rate", [0.49, 0.51])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_slack_rate_is_refused_exactly_where_slacks_would_swing_for_ever(changed, normalise, rate):
    fields = {"constraints.slacks": "explicit", "constraints.resilience": 4.0, "constraints.normalise": normalise}
    config = changed(**fields, **{"constraints.slack_rate": rate})
    slack, losses, multiplier = slack_rule(config), jnp.ones(2), jnp.array([0.01])

    def move(state):
        return slack.update(
            state, jax.grad(objective_value, argnums=3)(config, losses, multiplier, state.slacks, _rise)
        )

    last = _run_out(move, slack.init(1)).slacks
    assert np.allclose(last, multiplier / 4.0, rtol=1e-3) == (rate < 0.5)
    if rate < 0.5:
        check_config(config)
        return
    with pytest.raises(UserError, match=r"--constraints.slack-rate must be below 0.5, which is 2"):
        check_config(config)


def _rise(losses):
    return losses[1:] - losses[:-1]


def _run_out(move, state):
    return jax.jit(lambda: jax.lax.scan(lambda state, _: (move(state), None), state, length=2000)[0])()
