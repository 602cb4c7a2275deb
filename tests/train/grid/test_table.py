"""Tables of real runs: what is computed, gone on with, marked and written."""

import csv
import json
import shutil

import numpy as np
import pytest

from tests.train.commands import refused
from tests.train.grid.conftest import FRAMED, GRID, REFUSED, SMALL, states_of, table_of
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import StorageError, UserError
from unroll_jax.train.report import Report
from unroll_jax.train.system.files import locked

pytestmark = [pytest.mark.xdist_group("grid"), pytest.mark.slow]

CONSTRAINED = "video-ut_train-gamma-0.15_constrained_seed-0"
FEWER = ["table", "video-ut", *SMALL, "--over.seed", "0"]
PLAIN = [f"video-ut_train-gamma-{gamma}_erm_seed-0" for gamma in ("0.0", "0.15")]


def evaluation_of(folder, cell):
    return json.loads((folder / "cells" / cell / "evaluation.json").read_text())


def test_every_cell_that_can_be_is_a_run_and_the_others_say_why(whole):
    states = states_of(whole)
    assert sorted(states) == sorted(
        f"video-ut_train-gamma-{gamma}_{method}_seed-0" for gamma in (0.0, 0.15) for method in ("erm", "constrained")
    )
    assert {name for name, state in states.items() if state == "refused"} == {REFUSED}
    assert {path.name for path in (whole / "cells").iterdir() if path.is_dir()} == set(states) - {REFUSED}
    assert "Not run: " in (whole / "table.md").read_text()
    assert "leaves descent constraints nothing to lower" in (whole / "table.md").read_text()


def test_the_table_holds_the_means_of_the_evaluations(whole):
    with (whole / "table.csv").open() as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    for name, row in rows.items():
        if row["state"] == "finished":
            rmse = evaluation_of(whole, name)["rmse"]
            assert float(row["rmse_mean"]) == pytest.approx(np.mean([rmse["0.0"], rmse["0.15"], rmse["0.3"]]))
            gamma = row["train-gamma"]
            assert float(row["rmse_training"]) == pytest.approx(rmse[gamma])
            stronger = [rmse["0.3"]] if gamma == "0.15" else [rmse["0.15"], rmse["0.3"]]
            assert float(row["rmse_stronger"]) == pytest.approx(np.mean(stronger))
    plain, constrained = (float(rows[cell]["rmse_mean"]) for cell in (PLAIN[1], CONSTRAINED))
    assert f"| {plain:.2f} | {constrained:.2f}" in (whole / "table.md").read_text()


def test_the_page_has_the_table_the_curves_and_the_frames(whole):
    page = (whole / "index.html").read_text()
    assert all(
        words in page for words in ("mean over the test gammas", "Frames of video-ut", "Feasibility on held-out")
    )
    for name in ("gallery_video-ut.png", "ood_curve.png", "layer_losses.png", "gallery_video-ut.gif"):
        assert (whole / name).stat().st_size > 0


def test_what_has_ended_is_not_computed_again_and_what_lost_its_evaluation_is_evaluated(copied, computed, capsys):
    assert main([*GRID, "--out", str(copied)]) == 0
    assert computed == []
    (copied / "cells" / CONSTRAINED / "evaluation.json").unlink()
    assert main([*GRID, "--out", str(copied)]) == 0
    assert computed == [CONSTRAINED]
    assert "[3 of 3] " + CONSTRAINED in capsys.readouterr().out
    assert "finished already after 4 steps" in (copied / "cells" / f"{CONSTRAINED}.log").read_text()


def test_a_table_that_is_interrupted_in_a_cell_goes_on_from_its_checkpoint(copied, whole, monkeypatch, capsys):
    shutil.rmtree(copied / "cells" / CONSTRAINED)
    calls, validate = [], train.loop.validate

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validate(*arguments)

    command = [*GRID, "--out", str(copied)]
    with monkeypatch.context() as patch:
        patch.setattr("unroll_jax.train.loop.validate", interrupted)
        assert main(command) == 130
    assert "the same command" in capsys.readouterr().err
    assert main(command) == 0
    assert "going on from the checkpoint of step 2" in (copied / "cells" / f"{CONSTRAINED}.log").read_text()
    metrics = [folder / "cells" / CONSTRAINED / "metrics.jsonl" for folder in (copied, whole)]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


def test_a_budget_of_cells_says_what_is_left_and_how_to_go_on(copied, computed, capsys):
    for cell in PLAIN:
        shutil.rmtree(copied / "cells" / cell)
    command = [*GRID, "--out", str(copied)]
    assert main([*command, "--cells", "1"]) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert "1 cells are left, the first is " + PLAIN[1] + "; to go on: unroll-jax" in last
    assert main([*last.partition("to go on: unroll-jax ")[2].split()]) == 0
    assert computed == PLAIN


@pytest.mark.slow  # the signal is tested in test_jobs
def test_a_budget_of_minutes_ends_a_cell_with_a_checkpoint(copied, capsys):
    shutil.rmtree(copied / "cells" / CONSTRAINED)
    steps = [*GRID, "--out", str(copied)]
    assert main([*steps, "--budget-minutes", "0.0005"]) == 3
    assert states_of(copied)[CONSTRAINED] == "left"
    assert main(steps) == 0
    assert states_of(copied)[CONSTRAINED] == "finished"


def test_more_values_extend_a_table(copied, computed):
    extended = [*GRID[:-2], "0,1", GRID[-1]]
    assert main([*extended, "--out", str(copied), "--cells", "1"]) == 3
    assert computed == ["video-ut_train-gamma-0.0_erm_seed-1"]


def test_other_axes_do_not_take_the_place_of_a_table_and_the_page_says_what_it_shows(copied, capsys):
    shown = "Cells: video-ut, over train-gamma 0,0.15; method erm,constrained; seed 0."
    assert all(shown in (copied / name).read_text() for name in ("table.md", "index.html"))
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    line = refused(capsys, *FEWER, "--out", str(copied))
    assert "holds a table over train-gamma 0,0.15; method erm,constrained; seed 0" in line
    assert f"this one, over seed 0, has no place for 3 of its cells, {PLAIN[0]} for one; repeat its values" in line
    assert {name: (copied / name).read_bytes() for name in before} == before


@pytest.mark.usefixtures("in_memory")
def test_processes_find_the_data_prepared_once_or_none_is_started(tmp_path, monkeypatch, capsys):
    prepared, started = [], []
    monkeypatch.setattr("unroll_jax.train.data.video.prepare", lambda data, *, log: prepared.append(data))
    monkeypatch.setattr("unroll_jax.train.grid.run.run_children", lambda cells, **_: started.append(len(cells)))
    command = [*GRID, "--jobs", "2", "--out", str(tmp_path / "table")]
    assert main(command) == 3
    assert (len(prepared), started) == (1, [3])

    def refuse(data, *, log):
        raise UserError("data.root=nowhere does not exist")

    monkeypatch.setattr("unroll_jax.train.data.video.prepare", refuse)
    assert "--data.root nowhere does not exist" in refused(capsys, *command)
    assert started == [3]


@pytest.mark.parametrize("error", [UserError("the clip is gone"), ValueError("a frame is\nodd")])
def test_frames_that_cannot_be_shown_cost_nothing_else_of_the_page(whole, tmp_path, monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    folder = shutil.copytree(whole, tmp_path / "table")
    (folder / "index.html").unlink()
    monkeypatch.setattr("unroll_jax.train.grid.writing.show_frames", fail)
    monkeypatch.setattr(
        "unroll_jax.train.grid.writing.report_of", lambda _: lambda _: Report("", [("Curves", ["a curve"])], {}, [])
    )
    assert main([*FRAMED, "--out", str(folder)]) == 0
    assert f"no frames of video-ut: {' '.join(str(error).split())}\n" in capsys.readouterr().out
    page = (folder / "index.html").read_text()
    assert "mean over the test gammas" in page
    assert "a curve" in page
    assert "Frames of video-ut" not in page


@pytest.mark.usefixtures("in_memory", "undrawn")
def test_a_cell_whose_loss_is_not_finite_is_told_and_is_not_fatal(tmp_path, computed, capsys):
    rates = ["--over.primal.learning-rate", "1e-3,1e9", "--method", "erm"]
    command = ["table", "video-ut", *SMALL, *rates, "--out", str(tmp_path), "--no-gallery"]
    assert main(command) == 0
    states = states_of(tmp_path)
    assert sorted(states.values()) == ["failed", "finished"]
    (failed,) = (name for name, state in states.items() if state == "failed")
    assert f"Failed: {failed}: " in capsys.readouterr().out
    computed.clear()
    assert main(command) == 0
    assert computed == [], "what failed by itself is not tried again"
    assert states_of(tmp_path) == states


def test_a_disk_that_refuses_ends_the_table_and_is_no_outcome_of_a_cell(copied, monkeypatch, capsys):
    shutil.rmtree(copied / "cells" / CONSTRAINED)
    before = {row["cell"]: row for row in table_of(copied)["cells"]}

    def full(*_, **__):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("unroll_jax.train.grid.cells.train_run", full)
        assert "the disk is full" in refused(capsys, *GRID, "--out", str(copied))
    after = {row["cell"]: row for row in table_of(copied)["cells"]}
    assert after[PLAIN[0]].items() >= before[PLAIN[0]].items(), "figures of finished cells stay"
    assert main([*GRID, "--out", str(copied)]) == 0
    assert states_of(copied)[CONSTRAINED] == "finished"


def test_where_every_cell_fails_the_first_message_is_the_error(tmp_path, in_memory, monkeypatch, capsys):
    def broken(*_, **__):
        raise UserError("nothing can be read")

    monkeypatch.setattr("unroll_jax.train.grid.cells.train_run", broken)
    assert main([*GRID, "--out", str(tmp_path)]) == 2
    assert "could be computed; the first says: nothing can be read" in capsys.readouterr().err


def test_an_infeasible_and_useless_model_is_caught_everywhere(tmp_path, in_memory, capsys):
    """As in Figure 11 of the paper: bounds that no layer can meet, and multipliers that grow by leaps."""
    hopeless = ["--method", "constrained", "--constraints.alpha", "0.999", "--dual.learning-rate", "1000"]
    command = ["table", "video-ut", *SMALL, *hopeless, "--over.seed", "0", "--out", str(tmp_path), "--no-gallery"]
    assert main(command) == 0
    output = capsys.readouterr().out
    (cell,) = states_of(tmp_path)
    assert "NOT feasible on held-out data" in (tmp_path / "cells" / f"{cell}.log").read_text()
    assert f"{cell}: constrained, 2 layers, training gamma 0.15, seed 0: NOT feasible (worst: layer" in output
    assert "†1/1" in (tmp_path / "table.md").read_text()
    assert "The constrained model is NOT feasible" in (tmp_path / "index.html").read_text()
    evaluation = evaluation_of(tmp_path, cell)
    losses, bounds = np.array(evaluation["layer_losses"][1:]), np.array(evaluation["bounds"][1:])
    over = [f"layer {place}: {share:.1%}" for place, share in enumerate(losses / bounds - 1.0, start=1)]
    (row,) = table_of(tmp_path)["cells"]
    assert (row["feasible"], row["over_bounds"]) == (False, "; ".join(over))


def test_a_table_takes_no_folder_of_something_else_and_no_cell_of_another_table(copied, tmp_path, capsys):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("dear")
    assert "so it is no table" in refused(capsys, *GRID, "--out", str(tmp_path / "thesis"))
    other = [word if word != "4" else "2" for word in GRID]
    assert "steps was 4, is now 2" in refused(capsys, *other, "--out", str(copied))
    with locked(copied):
        assert "another process is training" in refused(capsys, *GRID, "--out", str(copied))
    (copied / "table.json").write_text("{}")
    assert "is of no table" in refused(capsys, *GRID, "--out", str(copied))


def test_one_cell_alone_is_computed_for_a_scheduler_and_the_table_is_written_later(
    tmp_path, in_memory, undrawn, computed, capsys
):
    command = [*GRID, "--out", str(tmp_path / "table"), "--only"]
    assert main([*command, CONSTRAINED]) == 0
    assert (tmp_path / "table" / "cells" / CONSTRAINED / "evaluation.json").exists()
    assert not (tmp_path / "table" / "table.json").exists()
    capsys.readouterr()
    assert main([*GRID, "--out", str(tmp_path / "table"), "--cells", "1"]) == 3
    assert computed == [CONSTRAINED, PLAIN[0]]
    assert states_of(tmp_path / "table")[CONSTRAINED] == "finished"
    capsys.readouterr()
    assert "leaves descent constraints nothing to lower" in refused(capsys, *command, REFUSED)
