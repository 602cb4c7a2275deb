"""The share of the library's code that checks arguments."""

from tests.count_checks import count

MOST = 0.11  # the aim is .06


def test_checks_are_a_small_share_of_the_code():
    code, checks = count()
    assert checks.total() <= MOST * code.total(), "python -m tests.count_checks 40 lists them"
