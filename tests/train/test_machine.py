"""Options of XLA, kept memory and programs, and traces."""

import os
import platform
import subprocess
import sys

import jax
import pytest

from unroll_jax.train.data.prepare import prepared_root
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
def test_collectives_keep_one_order_on_several_devices_or_processes(monkeypatch, flags, processes, expected):
    monkeypatch.setenv("XLA_FLAGS", flags)
    for _ in range(2):
        order_collectives(processes=processes)
    assert os.environ["XLA_FLAGS"] == expected


# Page faults of writing 64 MiB for the tenth time.
PAGE_FAULTS = """
import resource
import numpy as np
from unroll_jax.train.system.machine import keep_memory
print(keep_memory())
for turn in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_freed_memory_is_used_again_without_a_page_fault_unless_the_user_has_settings():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    for variables, kept in (({}, "True"), ({"MALLOC_MMAP_THRESHOLD_": "1048576"}, "False")):
        command = [sys.executable, "-c", PAGE_FAULTS]
        printed, faults = subprocess.check_output(command, env=environment | variables, text=True).split()
        assert printed == kept
        assert kept == "False" or int(faults) < 100


@pytest.fixture
def cache_options():
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")}
    jax.config.update("jax_enable_compilation_cache", True)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("cache_options")
@pytest.mark.parametrize(
    ("setting", "variable", "xdg", "folder"),
    [
        (None, None, None, "~/.cache/unroll_jax/compiled"),
        (None, None, "/caches", "/caches/unroll_jax/compiled"),
        (None, None, "relative", "~/.cache/unroll_jax/compiled"),
        ("elsewhere", None, "/caches", "elsewhere"),
        (None, "", None, None),
    ],
)
def test_programs_are_kept_in_the_folder_of_caches_unless_jax_has_a_setting(
    monkeypatch, tmp_path, setting, variable, xdg, folder
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", xdg or "")
    monkeypatch.delenv("UNROLL_PREPARED", raising=False)
    caches = xdg if xdg == "/caches" else tmp_path / ".cache"
    assert str(prepared_root(None)) == f"{caches}/unroll_jax"
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", variable)
    jax.config.update("jax_compilation_cache_dir", setting)
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == (folder and folder.replace("~", str(tmp_path)))
    assert jax.config.jax_enable_compilation_cache
    monkeypatch.setenv("XLA_FLAGS", ONE_ORDER)
    keep_programs()
    assert not jax.config.jax_enable_compilation_cache, "of many devices: programs are compiled every time"
