"""The table of rules, and where it puts what."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.sharding.mesh import AXES
from unroll_jax.train.sharding.rules import shardings

MIXED = AbstractMesh((2, 2, 2), AXES)


class State(NamedTuple):
    """A training state with all that one may have."""

    params: Any
    opt_state: Any
    multipliers: Any


def _params(**shapes):
    kernels = {name: {"kernel": np.zeros(shape, np.float32)} for name, shape in shapes.items()}
    return {"layers": kernels, "b": np.zeros(8, np.float32)}


def _specs(state, mesh=MIXED, **options):
    return jax.tree.map(lambda sharding: sharding.spec, shardings(state, mesh, **options))


@pytest.mark.parametrize(
    "rule", [optax.adamw(1e-3), optax.sgd(1e-3, 0.9), optax.chain(optax.clip(1.0), optax.lion(1e-3))]
)
def test_moments_of_an_optimiser_are_where_optax_says_their_parameters_are(rule):
    params = _params(query=(3, 8, 4), output=(3, 4, 8))
    state = rule.init(params)
    specs = _specs(State(params, state, np.zeros(4, np.float32)))
    whole = PartitionSpec()
    expected = optax.tree.map_params(
        rule, lambda _, spec: spec, state, specs.params, transform_non_params=lambda _: whole
    )
    assert specs.opt_state == expected
    assert specs.params["layers"]["query"]["kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert specs.params["layers"]["output"]["kernel"] == PartitionSpec(None, "tensor", "fsdp")
    assert specs.multipliers == whole


def test_rows_of_attention_are_over_tensor_and_what_is_computed_with_whole_is_in_all_shares():
    params = {"layers": {name: np.zeros((3, 8, 8), np.float32) for name in "VWU"}}
    specs = _specs(State(params, (), ())).params["layers"]
    assert specs["V"] == PartitionSpec(None, "tensor", "fsdp")
    assert specs["W"] == specs["U"] == PartitionSpec(None, ("fsdp", "tensor"), None)


def test_what_has_another_shape_than_parameters_is_whole():
    params = _params(up=(8, 4))
    rule = optax.adafactor(1e-3, min_dim_size_to_factor=2)
    specs = _specs(State(params, rule.init(params), np.zeros((8, 4), np.float32)))
    assert specs.multipliers == PartitionSpec()
    factored = [spec for spec in jax.tree.leaves(specs.opt_state) if any(spec)]
    assert factored == [], "rows and columns of a factored moment are vectors"


def test_the_first_rule_counts_and_leading_dimensions_are_not_shared_out():
    rules = ((r"up/kernel$", (None, "tensor")), (r"kernel$", ("fsdp",)))
    specs = _specs(State(_params(up=(5, 3, 4), down=(5, 3, 4)), (), ()), rules=rules)
    assert specs.params["layers"]["up"]["kernel"] == PartitionSpec(None, None, "tensor")
    assert specs.params["layers"]["down"]["kernel"] == PartitionSpec(None, None, "fsdp")


def test_a_rule_of_more_axes_than_dimensions_is_an_error():
    with pytest.raises(ValueError, match="more axes than layers/up/kernel"):
        _specs(State(_params(up=(4, 4)), (), ()), rules=((r"kernel$", ("fsdp", None, "tensor")),))


def test_a_dimension_that_does_not_divide_is_named():
    with pytest.raises(UserError, match=r"fsdp = 2, which does not divide 7 .*\(7, 4\) of layers/up/kernel"):
        _specs(State(_params(up=(7, 4)), (), ()))


def test_an_axis_that_shares_nothing_out_is_refused():
    with pytest.raises(UserError, match="tensor=2, over which no parameter"):
        _specs(State(_params(plain=(8, 4)), (), ()))
