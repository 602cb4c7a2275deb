"""The net under the suite: every fault of its tables fits the tree, and what it says of a test is true."""

import ast

import pytest

from tests.faults.__main__ import TABLES, check, main, try_fault
from tests.faults.fault import Fault

FAULTS = [fault for faults in TABLES.values() for fault in faults]
SOURCE = "def half(x):\n    return x / 2\n"
SUITE = "from made import half\n\ndef test_half():\n    assert half(4) == 2\n"


def test_every_fault_changes_a_text_that_occurs_once_and_names_tests_that_are_there():
    assert len(FAULTS) >= 100
    assert len({fault.what for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        ast.parse(check(fault))


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "made.py").write_text(SOURCE)
    (tmp_path / "test_made.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return tmp_path


@pytest.mark.parametrize(
    ("new", "caught", "by"),
    [
        ("x / 3", True, "test_made.py::test_half"),
        ("x * 0.5", False, "exit code 0"),
        ("x / 2\nhalf = other", False, "exit code 2"),  # the test file cannot be imported
    ],
)
def test_a_fault_is_caught_if_a_test_fails_and_the_tree_is_mended(tree, new, caught, by):
    outcome = try_fault(Fault("half", "made.py", "x / 2", new, "test_made.py"), tree, tree / "compiled")
    assert (outcome.caught, outcome.by) == (caught, by)
    assert (tree / "made.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("pytest.ini", "[pytest]\naddopts = --no-such-option\n", 4),
        ("test_made.py", "# no tests\n", 5),
        ("test_made.py", SUITE.replace("def", "@pytest.mark.slow\ndef").replace("from", "import pytest\nfrom"), 5),
    ],
)
def test_a_suite_that_runs_no_test_catches_nothing(tree, file, text, code):
    (tree / file).write_text(text)
    outcome = try_fault(Fault("half", "made.py", "x / 2", "x / 3", "test_made.py"), tree, tree / "compiled")
    assert (outcome.caught, outcome.by) == (False, f"exit code {code}")


@pytest.mark.parametrize(
    ("old", "new", "tests", "message"),
    [
        ("x", "y", "test_made.py", "a text that occurs once, got 2"),
        ("x / 4", "y", "test_made.py", "a text that occurs once, got 0"),
        ("x / 2", "x / 2", "test_made.py", "must change a text"),
        ("x / 2", "x / 3", "test_made.py gone.py", "names tests that are not there: gone.py"),
    ],
)
def test_a_fault_that_does_not_fit_is_refused(tree, old, new, tests, message):
    with pytest.raises(ValueError, match=message):
        check(Fault("half", "made.py", old, new, tests), tree)


def test_a_filter_that_leaves_no_fault_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "no such fault"])
    assert "names no fault" in capsys.readouterr().err
