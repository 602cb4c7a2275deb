"""Memory is checked before arrays take it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.main import fit
from unroll_jax.train.system.machine import memory_of_devices, require_memory, size_of, step_size


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
