"""The options of a run out of its config.json, for another run and to go on."""

import json

import pytest

from tests.train.commands import named, refused
from tests.train.conftest import RUN
from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.fields import differences, to_json
from unroll_jax.train.config.run import FREE
from unroll_jax.train.runs import read_config
from unroll_jax.train.system.files import strict_json

pytestmark = pytest.mark.xdist_group("video-runs")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_the_config_of_a_run_is_a_file_of_options_without_its_place(both, trained, tmp_path):
    path = both / "constrained" / "config.json"
    _, config = configured("run", ["video-ut", "--config", str(path), "--seed", "3"])
    _, before = read_config(path.parent)
    assert differences(to_json(before), to_json(config)) == [f"config was None, is now {path}", "seed was 0, is now 3"]
    _, config = configured("run", ["video-ut", "--config", str(trained / "config.json")], ("video-ut", named("here")))
    assert config.out == "here"


TOML = """
steps = 7
test-gammas = [0.0, 0.2]
[constraints]
alpha = [0.1, 0.2]
layers = false
also = ["norm=8"]
[primal]
learning-rate = 1e-3
"""


def test_a_toml_file_is_read_as_the_words_of_a_command(tmp_path):
    (tmp_path / "options.toml").write_text(TOML)
    words = (
        "--steps 9 --test-gammas 0.0 0.2 --constraints.alpha 0.1 0.2 --constraints.no-layers --constraints.also norm=8"
    )
    expected = configured("run", ["video-ut", *words.split(), "--primal.learning-rate", "1e-3"])[1]
    actual = configured("run", ["video-ut", "--config", "options.toml", "--steps", "9"])[1]
    assert differences(to_json(expected), to_json(actual)) == ["config was None, is now options.toml"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("stepz = 3", "--stepz"), ("steps = [", "cannot be read"), ("steps = 'x'", "--steps"), ("a.b = 1", "--a.b")],
)
def test_a_toml_file_that_does_not_fit_is_one_line(tmp_path, capsys, text, words):
    (tmp_path / "options.toml").write_text(text)
    assert words in refused(capsys, "run", "video-ut", "--config", "options.toml")


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


BROKEN = [
    (None, "does not exist; give a TOML file of options"),
    (b"{", "is damaged ("),
    (b'{"steps": 4}', "has no version of a run"),
    (b'{"version": "0.3", "steps": 4, "steps": 5}', "steps is there more than once"),
    (b'{"version": "0.3", "stesp": 4}', "is unknown or missing"),
]


def test_a_whole_number_beyond_64_bits_is_a_float():
    """As model_max_length of many tokenizers is, int(1e30)."""
    values = strict_json(b"[1000000000000000019884624838656, 18446744073709551615, -9223372036854775808]")
    assert values == [1e30, 2**64 - 1, -(2**63)]
    assert list(map(type, values)) == [float, int, int]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_file_that_is_no_config_of_a_run_is_one_line_with_its_name(text, words, tmp_path, capsys):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text)
    error = refused(capsys, "run", "video-ut", "--config", "config.json")
    assert words in error
    assert "config.json" in error
