"""Where compiled programs are kept."""

import jax
import pytest

from unroll_jax.train.system.machine import ONE_ORDER, keep_programs

NAME = "jax_compilation_cache_dir"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """``folder(before, environment)``: JAX's setting after `keep_programs`, in a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", "")  # which another test of this process may have joined processes with
    before = jax.config.jax_compilation_cache_dir

    def folder_of(setting, variable=None):
        jax.config.update(NAME, setting)
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        if variable is not None:
            monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", variable)
        keep_programs()
        return jax.config.jax_compilation_cache_dir

    yield folder_of
    jax.config.update(NAME, before)


def test_programs_are_kept_in_the_home_unless_jax_was_told_otherwise(folder, tmp_path):
    assert folder(None) == str(tmp_path / ".cache" / "unroll_jax" / "compiled")
    assert folder("elsewhere") == "elsewhere"
    assert folder(None, "") is None


def test_programs_of_many_devices_on_cpus_are_compiled_anew(folder, monkeypatch):
    before = jax.config.jax_enable_compilation_cache
    try:
        monkeypatch.setenv("XLA_FLAGS", ONE_ORDER)
        folder(None)
        assert not jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
