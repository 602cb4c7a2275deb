"""The least cost of slack at which multipliers come to rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.constraints import DescentConstraints

LEAST = {"sgd": ({}, 0.05), "pi": ({}, 1.05), "pi, half the gain": ({"dual.proportional_gain": 0.5}, 0.55)}


@pytest.mark.parametrize("share", [1.02, 0.98])
@pytest.mark.parametrize("name", LEAST)
def test_a_resilience_is_refused_exactly_where_multipliers_would_swing_for_ever(changed, name, share):
    fields, least = LEAST[name]
    fields = {"dual.optimizer": name.split(",")[0], "dual.learning_rate": 0.1, **fields}
    config = changed(**fields, **{"constraints.resilience": share * least})
    dual = DescentConstraints(config, num_layers=2, steps_an_epoch=16, num_steps=config.steps).ascent
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
