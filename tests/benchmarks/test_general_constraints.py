"""The benchmark of general constraints, at a tiny size."""

from benchmarks import general_constraints


def test_general_constraints_print_every_case(capsys, monkeypatch):
    setting = general_constraints.QUICK._replace(inputs=8, width=8, batch=6, repeats=2)
    monkeypatch.setattr(general_constraints, "QUICK", setting)
    record = general_constraints.main(quick=True, peers=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "no constraints",
        "dense, 1",
        "dense, 100",
        "indexed, 1",
        "indexed, 100",
    ]
    assert record.figures["ours, dense, 100 over plain"] > 0.0
