"""What is absurd is refused before it takes memory; a warm-up that nobody chose gives way to a short run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import WHOLE, check_fields, with_value
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import fit
from unroll_jax.train.system.machine import memory_of_devices, require_memory, size_of, step_size


def whole_numbers(config):
    """Fields of a configuration, however deep, that hold whole numbers."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from whole_numbers(value)
        elif "int" in str(field.type):
            yield field.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_whole_number_has_a_range_and_every_experiment_is_within_its_ranges(name):
    config = EXPERIMENTS[name].config
    # Layers whose multipliers are frozen are those of the network.
    assert set(whole_numbers(config)) - {"frozen"} <= set(WHOLE)
    check_fields(config, ())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e10, 1e10, 1e-16, -1e-300])
def test_a_number_that_float32_cannot_work_with_is_refused(value):
    config = with_value(EXPERIMENTS["demo"].config, "dual.cap", value)
    with pytest.raises(UserError, match=f"^--dual.cap must be finite, and 0 or of a size from .*, got {value}$"):
        check_fields(config, ())


def test_memory_is_looked_at_before_it_is_taken():
    there = memory_of_devices()
    require_memory(there, "the state", "choose a smaller model")
    with pytest.raises(UserError, match=r"^the state takes [\d,.]+ GB and there are [\d,.]+; choose a smaller model$"):
        require_memory(there + 1, "the state", "choose a smaller model")


def test_bytes_are_those_of_all_arrays():
    assert size_of({"a": jnp.zeros((3, 5), jnp.float32), "b": [jnp.zeros(7, jnp.int8)]}) == 67


def test_a_compiled_step_is_as_large_as_what_it_is_given_and_keeps_for_its_backward_pass():
    x, layers = np.ones((64, 64), np.float32), 10

    def loss(x):
        return jnp.sum(jax.lax.scan(lambda y, _: (jnp.tanh(y @ x), None), x, length=layers)[0])

    compiled = jax.jit(jax.grad(loss)).lower(x).compile()
    assert step_size(compiled) >= jax.local_device_count() * layers * x.nbytes


def test_a_state_that_does_not_fit_is_refused_before_it_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr("unroll_jax.train.system.machine.memory_of_devices", lambda: 100)
    with pytest.raises(UserError, match=r"the state of training takes .* GB and there are 0.0; choose a smaller model"):
        fit("image-dnn", out=tmp_path / "run", log=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_a_default_warmup_gives_way_to_a_short_run_with_a_word():
    usual, log = EXPERIMENTS["text-ut"].config, []
    assert (usual.constraints.warmup_steps, usual.steps) == (300, 800)
    short = dataclasses.replace(usual, steps=80)
    assert short.fitting(usual, chosen=False, log=log.append).constraints.warmup_steps == 30
    assert log == ["--constraints.warmup-steps is 30 here: the default, 300, does not fit --steps 80"]


def test_a_warmup_that_fits_or_was_chosen_stays_as_it_is():
    usual = EXPERIMENTS["text-ut"].config
    short = dataclasses.replace(usual, steps=80)
    for config, chosen in ((usual, False), (short, True), (EXPERIMENTS["image-opteq"].config, False)):
        assert config.fitting(usual, chosen=chosen, log=pytest.fail) is config
