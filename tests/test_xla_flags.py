"""XLA's flags: an unknown one cannot end a run silently. Every run checks its own flags as it starts."""

from pathlib import Path

import pytest

from .xla_flags import flags

UNKNOWN = "--xla_no_such_flag=1"


@pytest.mark.parametrize(("version", "expected"), [("0.10.2", True), ("0.12.0.1", False)])
def test_a_flag_is_set_only_where_it_is_known(version, expected):
    assert ("fusion_emitters" in flags(version)) == expected


def test_a_run_with_an_unknown_flag_ends_with_a_message(request, monkeypatch):
    conftest = request.config.pluginmanager.getplugin(str(Path(__file__).with_name("conftest.py")))
    monkeypatch.setenv("XLA_FLAGS", UNKNOWN)
    with pytest.raises(pytest.exit.Exception, match=f"{UNKNOWN}.*change XLA_FLAGS") as caught:
        conftest.pytest_configure(object())
    assert caught.value.returncode == pytest.ExitCode.USAGE_ERROR
