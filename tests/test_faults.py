"""The table of faults: each changes another operator, at a place that exists, and
names tests that exist."""

import ast

from tests.faults import FAULTS, ROOT, mutated


def test_every_fault_has_its_place_and_its_tests():
    assert len({fault[:3] for fault in FAULTS}) == len(FAULTS) <= 60
    for fault in FAULTS:
        source = (ROOT / fault.place.partition(":")[0]).read_text(encoding="utf-8")
        assert mutated(source, fault) != ast.unparse(ast.parse(source)), fault
        assert all((ROOT / "tests" / name).is_file() for name in fault.tests.split()), (
            fault
        )
