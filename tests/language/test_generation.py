"""`unroll-jax generate` of runs: their weights and template, and answers that an interruption leaves."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from tests.train.commands import quiet, refused
from unroll_jax.models import Decoder, decoder_logits
from unroll_jax.train import load
from unroll_jax.train.__main__ import main
from unroll_jax.train.data.instructions import Prompt
from unroll_jax.train.exporting import export
from unroll_jax.train.generation import Settings, Unfinished, answer
from unroll_jax.train.loading import open_decoder

pytestmark = pytest.mark.xdist_group("language")
ROWS = [{"instruction": "Say bado."}, {"instruction": "Add 1 and 2."}, {"instruction": "Say mi twice."}]


@pytest.fixture
def command(finished, tmp_path):
    (tmp_path / "prompts.json").write_text(json.dumps(ROWS))
    words = ["generate", str(finished.folders[1]), "--prompts", str(tmp_path / "prompts.json"), "--max-tokens", "5"]
    out = tmp_path / "answers.json"
    return [*words, "--batch", "2", "--out", str(out)], out


def with_words(words, old, new):
    return [new if word == old else word for word in words]


def test_a_run_answers_with_its_best_weights_in_its_template(finished, command):
    words, out = command
    assert main(words) == 0
    rows = json.loads(out.read_text())
    assert [row["instruction"] for row in rows] == [row["instruction"] for row in ROWS]
    assert {row["generator"] for row in rows} == {"constrained"}
    model = load(finished.folders[1], log=quiet)
    given, decoder = model.task.data.source, model.params["decoder"]
    last = jax.jit(
        lambda tokens: decoder_logits(
            given.config, decoder, Decoder(given.config).apply({"params": decoder}, tokens)[-1]
        )
    )
    tokens = given.tokenizer.encode(["<|user|>Say bado.<|end|><|assistant|>"])[0].tolist()
    start = len(tokens)
    while len(tokens) < start + 5 and tokens[-1] not in (given.tokenizer.stops if len(tokens) > start else ()):
        padded = jnp.asarray([tokens + [0] * (start + 5 - len(tokens))])
        tokens.append(int(last(padded)[0, len(tokens) - 1].argmax()))
    assert rows[0]["output"] == given.tokenizer.decode(tokens[start:], special=False).strip()
    assert main([*words, "--overwrite", "--exit-layer", "2", "--draft-length", "2"]) == 0
    assert json.loads(out.read_text()) == rows


def test_an_export_answers_as_its_run_and_noise_is_that_of_training(finished, tmp_path):
    folder = export(finished.folders[0], tmp_path / "model", log=quiet)
    opened = [open_decoder(str(place), log=quiet) for place in (finished.folders[0], folder)]
    prompts, settings = [Prompt(row["instruction"]) for row in ROWS], Settings(max_tokens=4, batch=3, gamma=1.5)
    one, other = ([reply.tokens for reply in answer(each, prompts, settings, log=quiet)] for each in opened)
    assert one == other
    assert opened[0].deviation(1.5) == 1.5, "drawn embeddings start with a deviation of 1"
    assert opened[0].layers == (0, 1, 2, 3)


def test_an_interrupted_command_goes_on_behind_the_answers_it_has(command, monkeypatch, capsys):
    words, out = command
    assert main(words) == 0
    whole, partial, add = out.read_text(), out.with_name("answers.unfinished.jsonl"), Unfinished.add
    assert not partial.exists()
    out.unlink()

    def killed(self, answers):
        add(self, answers)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "add", killed)
        assert main(words) == 130
    assert len(partial.read_text().splitlines()) == 3, "what they are of, and the two of the first batch"
    assert not out.exists()
    torn = '{"place": 1, "text": "'
    partial.write_text(partial.read_text() + torn)
    capsys.readouterr()
    line = refused(capsys, *words, "--gamma", "1")
    assert "holds answers of another command (gamma was 0.0, is now 1.0); give that one again, delete the" in line
    assert main(with_words(words, "2", "1")) == 0, "in batches of another size"
    assert f"{partial}: resumes behind 2 of 3 answers" in capsys.readouterr().out
    assert (out.read_text(), partial.exists()) == (whole, False)
    out.unlink()
    partial.write_text("[]\n")
    assert "answers.unfinished.jsonl is damaged in line 1" in refused(capsys, *words)


def test_what_a_run_cannot_generate_is_refused_in_one_line(finished, command, tmp_path, capsys):
    words, _ = command
    bare, other, several = (tmp_path / name for name in ("bare", "other", "several"))
    shutil.copytree(finished.folders[0], bare, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(bare, other)
    description = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(description | {"task": "video", "experiment": "demo"}))
    shutil.copytree(bare, several / "plain")
    long = tmp_path / "long.txt"
    long.write_text("a" * 80)
    cases = (
        (with_words(words, words[1], str(bare)), "bare has no checkpoints; they are gone"),
        (with_words(words, words[1], str(other)), "other is a run of demo, not of a language model; give one of an"),
        (with_words(words, words[1], str(several)), "it holds the run folders"),
        (with_words(words, words[3], str(long)), "prompt 1 has 83 tokens, and the decoder has places for 1 to 59"),
        (with_words(words, "5", "64"), "--max-tokens must be in [1, max_positions=64), got 64"),
        ([*words, "--exit-layer", "3", "--draft-length", "1"], "--exit-layer must be in [1, num_layers=3)"),
    )
    for command_words, message in cases:
        assert message in refused(capsys, *command_words)
    assert not list(tmp_path.glob("*.unfinished.jsonl"))
