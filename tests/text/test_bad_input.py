"""Bad texts, labels and checkpoints, as the command line tells them: one line each, and nothing trained."""

import pytest

from unroll_jax.train.__main__ import main

ROWS = [("a good film", "good"), ("a bad film", "bad"), ("a film that is good", "good"), ("long and bad", "bad")] * 10


def table(folder, train=ROWS, test=ROWS[:4], encoding="utf-8"):
    """A folder of tables, and the options that have it read."""
    root = folder / "table"
    root.mkdir()
    for name, rows in {"train": train, "test": test, "dev": ROWS[:4]}.items():
        text = "\n".join(["text\tlabel", *("\t".join(row) for row in rows)]) + "\n"
        (root / f"{name}.tsv").write_bytes(text.encode(encoding))
    return ["--data.source", "table", "--data.root", str(root), "--data.prepared", str(folder / "prepared")]


@pytest.fixture
def told(tmp_path, capsys, write_folder):
    """What `run` says on stderr of an encoder and tables with something wrong; the run's folder must not be there."""

    def run(*, texts=None, folder=None):
        encoder = write_folder(**(folder or {}))
        options = [*table(tmp_path, **(texts or {})), "--model.pretrained", str(encoder), "--max-length", "8"]
        code = main(["run", "text-encoder", *options, "--out", str(tmp_path / "run")])
        assert code == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    return run


BAD = {
    "unknown architecture": ({"folder": {"config": {"model_type": "t5"}}}, ["model_type='t5'", "bert, distilbert"]),
    "label outside the classes": (
        {"texts": {"test": [*ROWS[:2], ("a film", "neither")]}},
        ["test.tsv line 4 has label 'neither', which train lacks; its classes are bad, good"],
    ),
    "not UTF-8": (
        {"texts": {"train": [*ROWS, ("caf\u00e9", "good")], "encoding": "latin-1"}},
        ["train.tsv is not UTF-8: byte 0xe9 in line 42"],
    ),
}


@pytest.mark.parametrize(("wrong", "words"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_told_in_one_line_before_anything_is_trained(told, wrong, words):
    error = told(**wrong)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def test_texts_that_are_too_long_are_one_line_with_their_count(tmp_path, capsys, monkeypatch, write_folder):
    monkeypatch.setattr(
        "unroll_jax.train.plan.make_plan", lambda task: next(task.batches(0, None))
    )  # and compiles no step
    monkeypatch.setattr("unroll_jax.train.plan.describe_plan", lambda plan: "")
    options = [*table(tmp_path), "--model.pretrained", str(write_folder()), "--max-length", "5"]
    assert main(["plan", "text-encoder", *options]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "lose their end" in line]
    assert warnings == ["  train: 10 of 40 texts have more than 5 tokens and lose their end"]
