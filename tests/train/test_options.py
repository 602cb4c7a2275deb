"""A file of options in place of typed ones, and the config.json of a run as such a file."""

import json

import pytest

from tests.train.commands import meant, named, refused
from tests.train.conftest import RUN
from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.fields import differences, to_json
from unroll_jax.train.config.run import FREE
from unroll_jax.train.runs import read_config
from unroll_jax.train.system.files import strict_json

FILES = {
    "options.toml": """\
steps = 40
batch-size = 8
test_gammas = [0, 0.3]
dual.every = "epoch"
primal = {learning_rate = 1e-3, clip_norm = "None"}
model.num_layers = 2
[constraints]
alpha = 0.1
normalise = false
""",
    "options.json": """\
{"steps": 40, "batch_size": 8, "test_gammas": [0, 0.3], "model": {"num_layers": 2}, "dual.every": "epoch",
 "primal": {"learning-rate": 1e-3, "clip_norm": null}, "constraints": {"alpha": [0.1], "normalise": false}}
""",
}
TYPED = (
    "--steps 40 --batch-size 8 --test-gammas 0 0.3 --model.num-layers 2 --primal.learning-rate 1e-3"
    " --primal.clip-norm None --constraints.alpha 0.1 --constraints.no-normalise --dual.every epoch"
)


pytestmark = pytest.mark.xdist_group("video-runs")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_options_means_the_same_as_these_options_typed(name, tmp_path):
    (tmp_path / name).write_text(FILES[name])
    typed = meant(*TYPED.split())
    assert len(typed) == 9
    assert meant("--config", name) == meant(f"--config={name}") == typed
    over = meant("--steps", "50", "--config", name, "--dual.every", "1", "--constraints.normalise")
    assert "steps was 1500, is now 50" in over
    assert not any(line.startswith(("dual", "constraints.normalise")) for line in over)


def test_the_config_of_a_run_is_a_file_of_options_without_its_place(both, trained, tmp_path):
    path = both / "constrained" / "config.json"
    _, config = configured("run", ["video-ut", "--config", str(path), "--seed", "3"])
    _, before = read_config(path.parent)
    assert differences(to_json(before), to_json(config)) == [f"config was None, is now {path}", "seed was 0, is now 3"]
    _, config = configured("run", ["video-ut", "--config", str(trained / "config.json")], ("video-ut", named("here")))
    assert config.out == "here"
    (tmp_path / "options.toml").write_text('out = "there"')
    assert configured("run", ["video-ut", "--config", "options.toml"])[1].out == "there"


@pytest.mark.slow
def test_a_run_resumes_by_its_folder_with_the_free_options_that_it_had_last(in_memory, tmp_path):
    free = ["--accumulate", "2", "--remat", "dots", "--unroll", "1", "--mesh", "data=1", "--track"]
    path = tmp_path / "run" / "config.json"
    assert main([*RUN, *free]) == 0
    has = {"accumulate": 2, "remat": "dots", "unroll": 1, "mesh": "data=1", "track": ()}
    for config in (configured("run", ["video-ut", "--config", str(path)])[1], read_config(path.parent, free=True)[1]):
        assert {name: getattr(config, name) for name in has} == has
    for name, usual in FREE.items():
        assert getattr(read_config(path.parent)[1], name) == usual, "an evaluation is free to choose too"
    stored = path.read_text()
    assert main([*RUN, "--accumulate", "4"]) == 0
    assert path.read_text() == stored, "a run that has ended is not trained with other values"
    for name in ("checkpoints/6", "status.json"):
        (path.parent / name).rename(tmp_path / name.replace("/", "-"))
    assert main(["run", "run", "--accumulate", "4"]) == 0
    assert json.loads(path.read_text()) == json.loads(stored) | {"accumulate": 4}


TOML = [
    (None, "cannot be read (No such file or directory)"),
    (b"\xff\xfe\x00", "cannot be read ("),
    (b"steps = [1, 2", "cannot be read ("),
    (b"a = " + b"[" * 100_000, "cannot be read ("),
    (b"steps = 4\nsteps = 5", "cannot be read ("),
    (b"", "holds no options by name"),
    (b"batch-size = 4\nbatch_size = 8", "batch_size is there more than once; give it once"),
    (b"dual-every = 4", "dual_every"),
    (b"stesp = 4", "stesp is not an option of this experiment; leave it out"),
    (b"[model]\nheads = 4", "model.heads is not an option of this experiment"),
    (b"'steps.model' = 4", "steps"),
    (b"steps = 'ten'", "steps is 'ten', which is of the wrong type; mend it"),
    (b"steps = 10.5", "steps is 10.5, which is of the wrong type"),
    (b"steps = true", "steps is True, which is of the wrong type"),
    (b"out = 2026-01-31", "out"),
    (b"model = 4", "4 is of the wrong type in place of num_layers, rank,"),
    (b"method = 'sgd'", "method is 'sgd', which is of the wrong type"),
    (b"constraints.alpha = [0.1, 'b']", "alpha is [0.1, 'b'], which is of the wrong type"),
    (b"steps = 0", "--steps must be a whole number from 1 to 1000000000, got 0"),
    (b"train-gamma = nan", "--train-gamma"),
    (b"train-gamma = 1%s" % (b"0" * 400), "--train-gamma"),
]
JSON = [
    (b"{", "cannot be read ("),
    (b"[1]", "holds no options by name"),
    (b'{"steps": 4, "steps": 5}', "steps is there more than once"),
    (b'{"model": {"rank": 4, "rank": 8}}', "rank is there more than once"),
    (b'{"model": {"rank": 4}, "model": {"rank": 8}}', "model is there more than once"),
    (b'{"dual.every": 4, "dual": {"every": 8}}', "dual.every is there more than once"),
    (b'{"train_gamma": 1e400}', "1e400"),
    (b'{"train_gamma": 1%s}' % (b"0" * 5000), "is not a finite number"),
    (b'{"out": "a\\u0000b"}', "--out"),
    (b"[" * 100_000, "cannot be read ("),
]


def test_a_whole_number_beyond_64_bits_is_a_float():
    """As model_max_length of many tokenizers is, int(1e30)."""
    values = strict_json(b"[1000000000000000019884624838656, 18446744073709551615, -9223372036854775808]")
    assert values == [1e30, 2**64 - 1, -(2**63)]
    assert list(map(type, values)) == [float, int, int]


@pytest.mark.parametrize(
    ("name", "text", "words"), [*(("options.toml", *row) for row in TOML), *(("options.json", *row) for row in JSON)]
)
def test_a_file_without_options_is_one_line_with_its_name(name, text, words, tmp_path, capsys):
    if text is not None:
        (tmp_path / name).write_bytes(text)
    error = refused(capsys, "run", "video-ut", "--config", name)
    assert words in error
    assert f"--config {name}" in error or "must be" in error
