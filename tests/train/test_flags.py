"""What XLA is told of collectives before it starts."""

import os

import pytest

from unroll_jax.train.system.machine import ONE_ORDER, order_collectives

EIGHT = "--xla_force_host_platform_device_count=8"
OTHER = "--xla_cpu_enable_concurrency_optimized_scheduler=true"


@pytest.mark.parametrize(
    ("flags", "processes", "expected"),
    [
        ("", False, ""),
        ("", True, ONE_ORDER),
        (EIGHT, False, f"{EIGHT} {ONE_ORDER}"),
        (EIGHT, True, f"{EIGHT} {ONE_ORDER}"),
        (f"{EIGHT} {OTHER}", True, f"{EIGHT} {OTHER}"),
    ],
)
def test_collectives_keep_one_order_on_several_devices_or_processes(monkeypatch, flags, processes, expected):
    monkeypatch.setenv("XLA_FLAGS", flags)
    for _ in range(2):
        order_collectives(processes=processes)
    assert os.environ["XLA_FLAGS"] == expected
