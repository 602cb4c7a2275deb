"""What a command means beside its options: a file of options, a run folder in the experiment's place, --overwrite."""

import dataclasses
import json
import shutil
import sys

import pytest

from tests.hostile import runs
from tests.hostile.named import OPTION
from tests.train.conftest import CLIPS
from train.__main__ import main
from train.config.fields import differences, to_json
from train.config.run import FREE
from train.experiments import EXPERIMENTS
from train.main import MEMBERSHIP
from train.options import configured
from train.runs import read_config
from train.system.storage import locked

RUN = runs.RUN.split()
GROUPS = """\
steps: 40
batch-size: 8
test_gammas: [0, 0.3]
model:
  num_layers: 2
primal: {learning_rate: 1e-3}
constraints:
  alpha: 0.1
  normalise: false
dual.every: epoch
"""
TYPED = (
    "--steps 40 --batch-size 8 --test-gammas 0 0.3 --model.num-layers 2 --primal.learning-rate 1e-3"
    " --constraints.alpha 0.1 --constraints.no-normalise --dual.every epoch"
)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def meant(*options, of="video-ut"):
    """What a command's options change of an experiment, in the words of `differences`."""
    name, config = configured("run", [of, *options])
    assert name == of
    return [line for line in differences(to_json(EXPERIMENTS[of].config), to_json(config)) if "config was" not in line]


def named(out):
    """The configuration of an experiment whose run is in a folder."""
    return dataclasses.replace(EXPERIMENTS["video-ut"].config, out=out)


def refused(capsys, *arguments):
    """The one line of a command that must fail."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("options.yaml", GROUPS),
        ("options", GROUPS),
        (
            "options.json",
            '{"steps": 40, "batch_size": 8, "test_gammas": [0, 0.3], "model": {"num_layers": 2}, "dual.every": "epoch",'
            ' "primal": {"learning-rate": 1e-3}, "constraints": {"alpha": [0.1], "normalise": false}}',
        ),
    ],
)
def test_a_file_of_options_means_what_the_same_options_mean_when_they_are_typed(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    typed = meant(*TYPED.split())
    assert len(typed) == 8
    assert meant("--config", name) == typed
    assert meant(f"--config={name}") == typed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profile: 100:5", "profile was None, is now 100:5"),
        ("out: 2026-01-31", "out was None, is now 2026-01-31"),
        ("out: on", "out was None, is now on"),
        ("steps: 1_200", "steps was 1500, is now 1200"),
        ("steps: 0x10", "steps was 1500, is now 16"),
        ("primal: &rates {clip_norm: ~}", "primal.clip_norm was 1.0, is now None"),
        ("primal.learning_rate: +2E-3", "primal.learning_rate was 0.0005, is now 0.002"),
        ("primal.learning_rate: 2.5e1", "primal.learning_rate was 0.0005, is now 25.0"),
        ("primal.learning_rate: .25", "primal.learning_rate was 0.0005, is now 0.25"),
        ("constraints.normalise: False", "constraints.normalise was True, is now False"),
        ("primal: {<<: {clip_norm: 2.0}, clip_norm: 3.0}", "primal.clip_norm was 1.0, is now 3.0"),
    ],
)
def test_a_scalar_of_yaml_is_what_it_looks_like(text, words, tmp_path):
    (tmp_path / "options.yaml").write_text(text)
    assert meant("--config", "options.yaml") == [words]


@pytest.mark.parametrize(
    ("text", "name"), [('{"steps": 4, "steps": 5}', "steps"), ('{"model": {"rank": 4, "rank": 8}}', "model.rank")]
)
def test_an_option_that_json_has_twice_is_named_in_full(text, name, tmp_path, capsys):
    (tmp_path / "options.json").write_text(text)
    said = refused(capsys, "run", "video-ut", "--config", "options.json")
    assert f"--config options.json: {name} is there more than once; give it once" in said


def test_options_that_are_typed_beside_a_file_count(tmp_path):
    (tmp_path / "options.yaml").write_text(GROUPS)
    beside = meant("--steps", "50", "--config", "options.yaml", "--dual.every", "1", "--constraints.normalise")
    assert "steps was 1500, is now 50" in beside
    assert not any(line.startswith(("dual", "constraints.normalise")) for line in beside)


def test_the_config_of_a_run_is_a_file_of_options(both):
    path = both / "constrained" / "config.json"
    _, config = configured("run", ["video-ut", "--config", str(path), "--seed", "3"])
    _, trained = read_config(path.parent)
    assert differences(to_json(trained), to_json(config)) == [f"config was None, is now {path}", "seed was 0, is now 3"]


def test_a_run_goes_on_by_its_folder_with_the_free_options_that_it_had_last(in_memory, tmp_path):
    free = ["--accumulate", "2", "--remat", "dots", "--mesh", "data=1", "--profile", "2:1", "--track"]
    path = tmp_path / "run" / "config.json"
    assert main([*RUN, *free]) == 0
    has = {"accumulate": 2, "remat": "dots", "mesh": "data=1", "profile": "2:1", "track": ()}
    for config in (configured("run", ["video-ut", "--config", str(path)])[1], read_config(path.parent, free=True)[1]):
        assert {name: getattr(config, name) for name in has} == has
    for name, usual in FREE.items():
        assert getattr(read_config(path.parent)[1], name) == usual, "an evaluation is free to choose too"
    stored = path.read_text()
    assert main([*RUN, "--accumulate", "4"]) == 0
    assert path.read_text() == stored, "a run that has ended is not trained with other values"
    for name in ("checkpoints/6", "status.json"):
        (path.parent / name).rename(tmp_path / name.replace("/", "-"))
    assert main(["run", "run", "--accumulate", "4", "--profile", "None"]) == 0
    assert json.loads(path.read_text()) == json.loads(stored) | {"accumulate": 4, "profile": None}


def test_the_config_of_a_run_does_not_say_where_a_run_goes(trained, tmp_path):
    _, config = configured("run", ["video-ut", "--config", "run/config.json"], ("video-ut", named("here")))
    assert config.out == "here"
    (tmp_path / "options.yaml").write_text("out: there")
    assert configured("run", ["video-ut", "--config", "options.yaml"])[1].out == "there"


def test_a_warm_up_that_a_file_names_is_chosen(tmp_path):
    (tmp_path / "options.yaml").write_text("constraints.warmup-steps: 50\n")
    short = ["--config", "options.yaml", "--steps", "40"]
    assert main(["run", "text-ut", *short]) == 2
    assert "constraints.warmup_steps was 300, is now 15" in meant("--steps", "40", of="text-ut")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"\xff\xfe\x00", "cannot be read ("),
        (b"steps: [1, 2", "cannot be read ("),
        (b"steps: !!python/object:os.system 1", "cannot be read ("),
        (b"[" * 100_000, "cannot be read ("),
        (b"", "holds no options by name"),
        (b"- steps", "holds no options by name"),
        (b"steps: 4\nseed: 1\nsteps: 5", "options.yaml: steps is there more than once; give it once"),
        (b"model: {rank: 4, rank: 8}", "options.yaml: model.rank is there more than once; give it once"),
        (b"model: {rank: 4}\nmodel: {rank: 8}", "options.yaml: model is there more than once; give it once"),
        (b"batch-size: 4\nbatch_size: 8", "batch_size is there more than once; give it once"),
        (b"dual.every: 4\ndual: {every: 8}", "dual.every is there more than once; give it once"),
        (b"? [a]\n: 4", "cannot be read ("),
        (b"!!map [a]", "cannot be read ("),
        (b"stesp: 4", "stesp is no option of this experiment; leave it out"),
        (b"model: {heads: 4}", "model.heads is no option of this experiment"),
        (b"model.heads: 4", "model.heads is no option of this experiment"),
        (b"steps.model: 4", "steps is {'model': 4}, which is of the wrong type"),
        (b"4: 4", "4 is no option of this experiment"),
        (b"steps: ten", "steps is 'ten', which is of the wrong type; mend it"),
        (b"steps: 10.5", "steps is 10.5, which is of the wrong type"),
        (b"steps: true", "steps is True, which is of the wrong type"),
        (b"steps: {a: 4}", "steps is {'a': 4}, which is of the wrong type"),
        (b"model: 4", "4 is of the wrong type in place of num_layers, rank,"),
        (b"method: sgd", "method is 'sgd', which is of the wrong type"),
        (b"constraints.alpha: [0.1, b]", "alpha is [0.1, 'b'], which is of the wrong type"),
        (b"seed: 010", "seed is '010', which is of the wrong type"),
        (b"method: off", "method is 'off', which is of the wrong type"),
        (b"constraints.normalise: no", "normalise is 'no', which is of the wrong type"),
        (b"steps: 1:30", "steps is '1:30', which is of the wrong type"),
        (b"steps: 0", "--steps must be a whole number from 1 to 1000000000, got 0"),
        (b"train-gamma: .nan", "--train-gamma"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_in_one_line(text, words, tmp_path, capsys):
    if text is not None:
        (tmp_path / "options.yaml").write_bytes(text)
    said = refused(capsys, "run", "video-ut", "--config", "options.yaml")
    assert words in said
    assert "--config options.yaml" in said or "must be" in said


@pytest.mark.parametrize("text", ["{", "[1]", '{"steps": 4, "steps": 5}', '{"steps": 1e400}', "[" * 100_000])
def test_json_that_is_none_is_refused_in_one_line(text, tmp_path, capsys):
    (tmp_path / "options.json").write_text(text)
    assert "--config options.json" in refused(capsys, "run", "video-ut", "--config", "options.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config"], "Missing value for argument '--config'"),
        (["--config", "--steps", "3"], "Missing value for argument '--config'"),
        (["--config="], "--config is empty"),
        (["--config", "a", "--config", "b"], "--config"),
        (["--config", "."], "--config . cannot be read (Is a directory)"),
        (["--config=~nobody0/a"], "is in nobody's home folder"),
    ],
)
def test_a_file_that_is_not_named_is_refused_in_one_line(options, words, capsys):
    assert words in refused(capsys, "run", "video-ut", *options)


@pytest.fixture
def trained(in_memory, tmp_path):
    """A finished run of the command `RUN`."""
    assert main(RUN) == 0
    return tmp_path / "run"


def test_a_run_goes_on_by_the_name_of_its_folder(trained, tmp_path, capsys):
    assert main(["run", "run"]) == 0
    assert "run: finished already after 6 steps" in capsys.readouterr().out
    whole = (trained / "metrics.jsonl").read_text()
    (trained / "evaluation.json").unlink()
    for name in ("checkpoints/6", "status.json"):
        (trained / name).rename(tmp_path / name.replace("/", "-"))
    assert main(["run", "run/"]) == 0
    assert "going on from the checkpoint of step 4" in capsys.readouterr().out
    assert (trained / "metrics.jsonl").read_text() == whole
    assert "steps was 6, is now 7" in refused(capsys, "run", "run", "--steps", "7")
    assert main(["run", "run", "--seed", "1", "--out", "again"]) == 0
    assert read_config(tmp_path / "again")[1].seed == 1
    assert (trained / "metrics.jsonl").read_text() == whole


@pytest.mark.parametrize(
    ("field", "value", "words", "way_out"),
    [
        ("mesh", "data=4096", "--mesh data=4096 of run/config.json asks for 4096 devices", ["--mesh", "None"]),
        ("track", ["mlflow"], "--track mlflow of run/config.json: mlflow is not", ["--track", "tensorboard"]),
    ],
)
def test_a_stored_mesh_or_tracker_that_is_not_there_is_told_to_be_stored(
    field, value, words, way_out, trained, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    stored = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps(stored | {field: value}))
    said = refused(capsys, "run", "run")
    assert words in said
    assert said.endswith(f"; {' '.join(way_out)} goes on without it\n")
    typed = refused(capsys, "run", "run", f"--{field}", *(value if field == "track" else [value]))
    assert "of run/config.json" not in typed
    assert main(["run", "run", *way_out]) == 0
    if field == "track":
        assert words in refused(capsys, "plan", "run")


def test_an_experiment_is_meant_where_a_folder_has_its_name(trained):
    trained.rename(trained.parent / "demo")
    assert configured("run", ["demo"]) is not None
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        patch.setattr("train.main.fit", lambda config, *, experiment: asked.append((experiment, config.method)))
        assert main(["run", "demo"]) == 0
    assert asked == [("demo", "both")]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("./empty", "empty is no run folder: it has no config.json"),
        ("./several", "it holds the run folders several/erm; give one of these"),
        ("empty", "empty is no run folder: it has no config.json"),
        (".", ". is no run folder: it has no config.json; it holds the run folders several/erm; give one of these"),
        ("./nowhere", "there is no run folder ./nowhere"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_in_one_line(named, words, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "several" / "erm").mkdir(parents=True)
    (tmp_path / "several" / "erm" / "config.json").write_text("{}")
    assert words in refused(capsys, "run", named)


def test_overwrite_begins_anew(trained, capsys):
    (trained / "notes.txt").write_text("of the old run")
    said = refused(capsys, *RUN, "--seed", "1")
    assert "seed was 0, is now 1; pass another --out, or --overwrite (overwrite=True from Python)" in said
    assert main([*RUN, "--seed", "1", "--overwrite"]) == 0
    assert "finished already" not in capsys.readouterr().out
    assert read_config(trained)[1].seed == 1
    assert not (trained / "notes.txt").exists()
    assert json.loads((trained / "status.json").read_text())["steps"] == 6
    assert main([*RUN, "--seed", "1"]) == 0
    assert "finished already" in capsys.readouterr().out


def test_overwrite_deletes_a_run_of_an_earlier_version_also_behind_a_link(trained, tmp_path):
    values = json.loads((trained / "config.json").read_text())
    del values["version"]
    trained.rename(tmp_path / "disk")
    trained.symlink_to(tmp_path / "disk")
    (trained / "config.json").write_text(json.dumps(values))
    assert main([*RUN, "--overwrite"]) == 0
    assert read_config(tmp_path / "disk")[0] == "video-ut"


def test_overwrite_of_nothing_is_a_run_like_another(in_memory, tmp_path):
    assert main([*RUN, "--overwrite"]) == 0
    assert (tmp_path / "run" / "evaluation.json").exists()


def test_overwrite_deletes_nothing_that_a_command_is_refused_for(trained, monkeypatch, capsys):
    kept = sorted(trained.rglob("*"))
    assert "--seed" in refused(capsys, *RUN, "--overwrite", "--seed", "-1")
    assert "--model.rank must be between 1 and" in refused(capsys, *RUN[:-1], "99", "--overwrite")
    monkeypatch.setattr(CLIPS, "splits", {**CLIPS.splits, "train": CLIPS.splits["train"][:2]})
    assert "--batch-size must be at most the 2" in refused(capsys, *RUN, "--seed", "2", "--overwrite")
    assert sorted(trained.rglob("*")) == kept


def test_overwrite_deletes_nothing_where_the_disk_has_no_room_without_the_old_run(trained, monkeypatch, capsys):
    kept, free = sorted(trained.rglob("*")), shutil.disk_usage(trained)
    held = sum(path.stat().st_size for path in trained.rglob("*") if path.is_file())
    monkeypatch.setattr("train.system.room.room_for", lambda like, *, saves: 10**9 + held)
    monkeypatch.setattr("train.system.storage.shutil.disk_usage", lambda _: free._replace(free=10**9 - 1))
    assert "the disk of run is full" in refused(capsys, *RUN, "--overwrite")
    assert sorted(trained.rglob("*")) == kept
    monkeypatch.setattr("train.system.storage.shutil.disk_usage", lambda _: free._replace(free=10**9))
    assert main([*RUN, "--overwrite"]) == 0, "what the old run takes is free once it is deleted"


def test_overwrite_deletes_no_other_run_that_lies_inside(trained, capsys):
    export = trained / "export" / "config.json"
    export.parent.mkdir()
    export.write_text('{"format": "unroll_jax 2", "experiment": "video-ut", "found": {}}')
    shutil.copytree(trained, trained / "erm", ignore=shutil.ignore_patterns("export"))
    kept = sorted(trained.rglob("*"))
    said = refused(capsys, *RUN, "--overwrite")
    assert "--overwrite would delete the runs run/erm too; move them away, or pass another --out" in said
    assert sorted(trained.rglob("*")) == kept
    shutil.rmtree(trained / "erm")
    assert main([*RUN, "--overwrite"]) == 0
    assert not export.exists()


def test_several_runs_are_refused_in_the_folder_of_one(trained, capsys):
    kept = sorted(trained.rglob("*"))
    for more in ((), ("--overwrite",)):
        said = refused(capsys, *RUN, "--method", "both", *more)
        assert "--out run is itself a run, and this trains erm and constrained in folders inside; pass another" in said
    assert sorted(trained.rglob("*")) == kept


def test_one_run_in_the_folder_of_several_is_told_how_to_go_on(trained, tmp_path, capsys):
    trained.rename(tmp_path / "constrained")
    trained.mkdir()
    (tmp_path / "constrained").rename(trained / "constrained")
    said = refused(capsys, *RUN)
    assert "--out run is no run but holds the runs run/constrained; give the command that began them" in said
    assert "or go on with one, as in `python -m train run run/constrained`" in said
    assert "it holds the run folders run/constrained; give one of these" in refused(capsys, "run", "run/")


@pytest.mark.parametrize("left", ["another run", "files"])
def test_both_methods_have_their_folders_before_the_first_step(left, trained, tmp_path, capsys):
    (tmp_path / "two").mkdir()
    if left == "files":
        (tmp_path / "two" / "constrained").mkdir()
        (tmp_path / "two" / "constrained" / "thesis.tex").touch()
    else:
        trained.rename(tmp_path / "two" / "constrained")
    words = {"another run": "seed was 0, is now 1", "files": "two/constrained holds files but no config.json"}
    command = runs.RUN.replace("--out run", "--out two").split()
    assert words[left] in refused(capsys, *command, "--method", "both", "--seed", "1")
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["constrained"]


def test_overwrite_is_refused_while_another_process_trains(trained, capsys):
    kept = sorted(trained.rglob("*"))
    with locked(trained):
        assert "another process is training run" in refused(capsys, *RUN, "--overwrite")
    assert sorted(trained.rglob("*")) == kept


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("thesis.tex", "", "run holds files but no config.json"),
        ("config.json", '{"architectures": ["BertModel"]}', "run holds no run for --overwrite to delete"),
        ("config.json", '{"format": "unroll_jax 2", "experiment": "a", "found": {}}', "run holds no run"),
        ("config.json", "{", "config.json is damaged"),
    ],
)
def test_overwrite_leaves_folders_of_others(name, text, words, in_memory, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(text)
    assert words in refused(capsys, *RUN, "--overwrite")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "run" / name).read_text() == text


def test_the_help_of_run_says_how_the_options_of_an_experiment_are_shown(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "python -m train run EXPERIMENT --help" in shown
    assert "--help-all" in shown
    assert all(name in shown for name in EXPERIMENTS)


def test_help_says_that_a_folder_may_stand_for_an_experiment_and_how_every_option_is_shown(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "run FOLDER" in shown
    assert "--help-all" in shown
    for command, takes_folders in (("run", True), ("plan", True), ("search", False)):
        assert main([command, "--help"]) == 0
        assert (f"python -m train {command} FOLDER" in capsys.readouterr().out) == takes_folders
    assert "search takes the name of an experiment and no folder, got ." in refused(capsys, "search", ".")
    assert "no folder, got runs/x" in refused(capsys, "search", "runs/x")


@pytest.mark.parametrize("every", ["--help", "--help-all"])
def test_help_breaks_no_sentence_where_the_source_does(every, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "900")
    assert main(["run", "demo", every]) == 0
    assert "tar archive of frames, in folders of splits as published" in capsys.readouterr().out


def options_in(capsys, *words):
    """The options in what a command shows, and its last line."""
    assert main(words) == 0
    shown = capsys.readouterr().out
    return set(OPTION.findall(shown)), shown.splitlines()[-1]


@pytest.mark.parametrize("command", ["run", "plan", "search"])
@pytest.mark.parametrize("experiment", ["demo", "image-opteq", "segment-fcn", "text-encoder", "text-ut"])
def test_help_shows_the_basic_options_that_an_experiment_has_and_how_to_see_the_others(command, experiment, capsys):
    basic, last = options_in(capsys, command, experiment, "--help")
    every, _ = options_in(capsys, command, experiment, "--help-all")
    assert last == f"every option: python -m train {command} {experiment} --help-all"
    assert basic - {"help-all"} < every
    length = {"epochs"} if experiment in ("image-opteq", "segment-fcn") else {"steps", "method", "constraints.alpha"}
    assert {"batch-size", "seed", "data.source", "data.root", "config", "out", "overwrite"} | length <= basic
    assert not {"accumulate", "remat", "dual.every", "optimizer.decay", "network.tol", "data.prepared"} & basic
    assert {"accumulate", "remat", "data.prepared"} <= every
    assert ({"trials", "over.alpha"} <= basic) == (command == "search")
    assert not {option.removeprefix("--") for option in MEMBERSHIP} & every


def test_commands_without_basic_options_show_all_that_they_have(capsys):
    assert options_in(capsys, "predict", "--help") == options_in(capsys, "predict", "--help-all")


def test_help_is_shown_beside_other_options_and_a_refusal_names_the_whole_of_it(capsys):
    basic, _ = options_in(capsys, "run", "demo", "--dual.every", "2", "--help")
    assert "dual.every" not in basic
    assert "see `python -m train run demo --help-all`" in refused(capsys, "run", "demo", "--stesp", "3")


def test_an_interrupted_run_that_overwrites_says_how_it_goes_on(in_memory, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("train.system.distributed.Stop.at", lambda stop, step: step >= 2)
    assert main([*RUN, "--overwrite"]) == 0
    assert "the same command without --overwrite goes on from there" in capsys.readouterr().err
    monkeypatch.undo()


def test_a_folder_that_is_not_there_is_told_to_be_no_run(in_memory, capsys):
    assert "there is no run folder runs/nothere" in refused(capsys, "run", "runs/nothere")


def test_no_comment_of_the_code_is_help(capsys):
    assert main(["run", "demo", "--help-all"]) == 0
    assert "The paper's UT" not in capsys.readouterr().out
