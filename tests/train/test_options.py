"""What a file of options means, and how a run's own config.json is one."""

import json

import pytest

from tests.train.commands import meant, named, refused
from tests.train.conftest import RUN
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.fields import differences, to_json
from unroll_jax.train.config.run import FREE
from unroll_jax.train.options import configured
from unroll_jax.train.runs import read_config

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
        ("primal.learning_rate: +3E-3", "primal.learning_rate was 0.002, is now 0.003"),
        ("primal.learning_rate: 2.5e1", "primal.learning_rate was 0.002, is now 25.0"),
        ("primal.learning_rate: .25", "primal.learning_rate was 0.002, is now 0.25"),
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
    error = refused(capsys, "run", "video-ut", "--config", "options.json")
    assert f"--config options.json: {name} is there more than once; give it once" in error


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


@pytest.mark.slow
def test_a_run_goes_on_by_its_folder_with_the_free_options_that_it_had_last(in_memory, tmp_path):
    free = ["--accumulate", "2", "--remat", "dots", "--unroll", "1", "--mesh", "data=1", "--profile", "2:1", "--track"]
    path = tmp_path / "run" / "config.json"
    assert main([*RUN, *free]) == 0
    has = {"accumulate": 2, "remat": "dots", "unroll": 1, "mesh": "data=1", "profile": "2:1", "track": ()}
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
    error = refused(capsys, "run", "video-ut", "--config", "options.yaml")
    assert words in error
    assert "--config options.yaml" in error or "must be" in error


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
