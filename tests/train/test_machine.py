"""Options of XLA, kept memory and programs, and traces."""

import dataclasses
import os
import platform
import subprocess
import sys

import jax
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.run import Profile, parse_profile
from unroll_jax.train.system.machine import (
    ONE_ORDER,
    keep_programs,
    order_collectives,
    profiling,
)

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


@pytest.mark.parametrize(
    ("setting", "variable", "folder"),
    [(None, None, "~/.cache/unroll_jax/compiled"), ("elsewhere", None, "elsewhere"), (None, "", None)],
)
def test_programs_are_kept_in_the_home_folder_unless_jax_has_a_setting(
    monkeypatch, tmp_path, setting, variable, folder
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", variable)
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", setting)
        keep_programs()
        assert jax.config.jax_compilation_cache_dir == (folder and folder.replace("~", str(tmp_path)))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_programs_of_many_devices_on_cpus_are_compiled_anew(monkeypatch):
    before = jax.config.jax_enable_compilation_cache
    monkeypatch.setenv("XLA_FLAGS", ONE_ORDER)
    try:
        keep_programs()
        assert not jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def test_steps_of_a_profile_are_counted_from_one_and_must_be_the_runs(start, config, tmp_path):
    assert parse_profile("3:2", num_steps=4) == Profile(3, 4)
    assert parse_profile(None) is None
    with pytest.raises(UserError, match="steps 5 to 8, but the run has 6"):
        start(dataclasses.replace(config, profile="5:4"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (range(7), ["start after 2", "stop after 4"]),
        (range(2, 4), ["start after 2", "stop after end"]),
        (range(3, 7), ["start after 3", "stop after 4"]),
        (range(4, 7), []),
    ],
)
def test_the_trace_covers_its_steps_and_ends_with_the_run(monkeypatch, tmp_path, calls, expected):
    events, done = [], 0
    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: events.append(f"start after {done}"))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: events.append(f"stop after {done}"))
    with profiling(Profile(3, 4), tmp_path, lambda line: None) as at:
        for done in calls:
            at(done, None)
        done = "end"
    assert events == expected


@pytest.mark.slow
@pytest.mark.xdist_group("video-runs")
def test_a_profiled_run_has_a_trace_and_is_the_same_run(start, config, both, tmp_path):
    start(dataclasses.replace(config, profile="2:3"))
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    rows = [(folder / "metrics.jsonl").read_bytes() for folder in (tmp_path / "run", both / "constrained")]
    assert rows[0] == rows[1]
