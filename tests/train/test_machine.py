"""Options of XLA and kept programs."""

import os

import jax
import pytest

from unroll_jax.train.system.machine import ONE_ORDER, keep_programs, order_collectives

EIGHT = "--xla_force_host_platform_device_count=8"
OTHER = "--xla_cpu_enable_concurrency_optimized_scheduler=true"


@pytest.mark.parametrize(
    ("flags", "processes", "expected"),
    [
        ("", False, ""),
        ("", True, ONE_ORDER),
        (EIGHT, False, f"{EIGHT} {ONE_ORDER}"),
        (f"{EIGHT} {OTHER}", True, f"{EIGHT} {OTHER}"),
    ],
)
def test_collectives_keep_one_order_on_several_devices_or_processes(
    monkeypatch, flags, processes, expected
):
    monkeypatch.setenv("XLA_FLAGS", flags)
    for _ in range(2):
        order_collectives(processes=processes)
    assert os.environ["XLA_FLAGS"] == expected


@pytest.fixture
def cache_options():
    before = {
        name: getattr(jax.config, name)
        for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    }
    jax.config.update("jax_enable_compilation_cache", True)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("cache_options")
@pytest.mark.parametrize(
    ("setting", "xdg", "folder"),
    [
        (None, "/caches", "/caches/unroll_jax/compiled"),
        (None, "relative", "/home/me/.cache/unroll_jax/compiled"),
        ("elsewhere", "/caches", "elsewhere"),
    ],
)
def test_programs_are_kept_in_the_folder_of_caches(monkeypatch, setting, xdg, folder):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    jax.config.update("jax_compilation_cache_dir", setting)
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == folder
    assert jax.config.jax_enable_compilation_cache
    monkeypatch.setenv("XLA_FLAGS", ONE_ORDER)
    keep_programs()
    assert not jax.config.jax_enable_compilation_cache, (
        "of many devices: programs are compiled every time"
    )
