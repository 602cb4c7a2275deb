"""The least cost of slack at which multipliers and slacks come to rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.constraints import DescentConstraints

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
def test_a_resilience_is_refused_exactly_where_multipliers_would_swing_for_ever(changed, name, share):
    fields, least = LEAST[name]
    fields = {"dual.optimizer": name.split(",")[0], "dual.learning_rate": 0.1, **fields}
    config = changed(**fields, **{"constraints.resilience": share * least})
    dual = DescentConstraints(config, num_layers=2, steps_an_epoch=16).ascent
    last = _run_out(lambda state: dual.update(state, jnp.full(3, 0.3)), dual.init(3)).multipliers
    assert np.allclose(last, 0.3 * share * least, rtol=1e-3) == (share > 1.0)
    if share > 1.0:
        config.check()
        return
    with pytest.raises(UserError, match=r"constraints.resilience must be above .*, or multipliers will oscillate"):
        config.check()
    dataclasses.replace(config, method="erm").check()


@pytest.mark.parametrize("rate", [0.49, 0.51])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_slack_rate_is_refused_exactly_where_slacks_would_swing_for_ever(changed, normalise, rate):
    explicit = {"slacks": "explicit", "resilience": 4.0, "slack_rate": rate, "normalise": normalise, "reference": None}
    frozen = {"dual.start": (0.01,), "dual.frozen": (1,), "model.num_layers": 1}
    config = changed(**frozen, **{f"constraints.{name}": value for name, value in explicit.items()})
    objective = DescentConstraints(config, num_layers=1, steps_an_epoch=10**6)
    samples, step = jnp.ones((1, 2)), jnp.array(0)
    last = _run_out(lambda moving: objective.advance(samples, samples[0], moving, step)[0], objective.init()).slacks
    assert np.allclose(last.slacks, 0.01 / 4.0, rtol=1e-3) == (rate < 0.5)
    if rate < 0.5:
        config.check()
        return
    with pytest.raises(UserError, match=r"constraints.slack_rate must be below 0.5, which is 2"):
        config.check()


def _run_out(move, state):
    return jax.jit(lambda: jax.lax.scan(lambda state, _: (move(state), None), state, length=2000)[0])()
