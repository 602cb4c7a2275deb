"""Readers of outside bytes accept changed files or refuse them; `make fuzz` changes more."""

import json

import pytest

from tests.fuzz import READERS, Reader, fuzzed
from unroll_jax.train.report import figures

DRAWN = ("curves", "evaluation", "status")  # reports: slower


@pytest.mark.parametrize("name", [name for name in READERS if name not in DRAWN])
@pytest.mark.filterwarnings("ignore")  # of numbers that overflow
def test_a_changed_file_is_accepted_or_refused(name):
    pytest.importorskip("gguf") if name == "gguf" else None
    assert fuzzed(READERS[name], 60.0, most=20).broken == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.filterwarnings("ignore")
def test_a_report_on_a_changed_run_is_written_or_refused(name, monkeypatch):
    monkeypatch.setattr(figures, "pictures", lambda *_: [])
    assert fuzzed(READERS[name], 60.0, most=200).broken == []


def test_a_reader_that_raises_another_error_is_reported(tmp_path):
    def read(folder):
        return json.loads((folder / "a.json").read_bytes())

    reader = Reader("a.json", lambda folder: (folder / "a.json").write_text('{"a": 1}'), read)
    outcome = fuzzed(reader, 60.0, most=20)
    assert any(words.startswith("JSONDecodeError at decoder.py") for words in outcome.broken)
