"""The study: values that depend on the seed and what came before, through any interruption."""

import json
import math
import pickle

import pytest

from tests.train.search.conftest import values_of
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.search.trials import open_study

RATES = {"primal-rate": "1e-5:1e-1"}


def test_no_pickle_is_read_or_written(go, monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("pickle")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    go(RATES, trials=2)
    go(RATES, trials=3)
    lines = (tmp_path / "search" / "journal.jsonl").read_text().splitlines()
    assert len(lines) >= 3
    assert all("op_code" in json.loads(line) for line in lines)


def test_what_a_kill_left_of_the_journal_is_no_hindrance(go, tmp_path):
    whole = go(RATES, "whole", trials=4)
    go(RATES, trials=2)
    journal = tmp_path / "search" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "stu')
    (tmp_path / "search" / "journal.jsonl.lock").symlink_to("journal.jsonl")
    assert go(RATES, trials=4) == whole


@pytest.mark.parametrize("kept", [1, 2])
def test_a_trial_killed_before_its_values_were_written_is_made_anew(go, tmp_path, kept):
    over = {**RATES, "alpha": "0.05:0.9"}
    whole = go(over, "whole", trials=3)
    go(over, trials=2)
    journal = tmp_path / "search" / "journal.jsonl"
    lines = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    created = [place for place, line in enumerate(lines) if json.loads(line)["op_code"] == 4]
    journal.write_bytes(b"".join(lines[: created[2] + kept]))
    cut = go(over, trials=3)
    assert values_of(cut) == values_of(whole)


@pytest.mark.parametrize("content", [b"{\n", b"[]\n", b'{"op_code": 99}\n', b'{"op_code": 4, "study_id": 7}\n'])
def test_a_damaged_journal_is_one_clear_line(go, tmp_path, content):
    go(RATES, trials=1)
    journal = tmp_path / "search" / "journal.jsonl"
    journal.write_bytes(content + journal.read_bytes())
    with pytest.raises(UserError, match=r"journal\.jsonl is damaged") as caught:
        go(RATES, trials=2)
    assert "\n" not in str(caught.value)


def test_opening_a_study_twice_gives_the_same_one(tmp_path):
    study = open_study(tmp_path)
    study.ask()
    assert len(open_study(tmp_path).trials) == 1


@pytest.mark.slow
def test_an_interrupted_search_ends_like_one_left_alone(go, monkeypatch, tmp_path):
    over, trials = {**RATES, "alpha": "0.05:0.9", "resilience": "none,3,10"}, 13
    whole = go(over, "whole", trials=trials)
    real = train.search.trials.train_run
    for after in (1, 11, 13):
        calls, name = [], f"cut in trial {after}"

        def interrupted(*arguments, calls=calls, after=after, **options):
            calls.append(arguments)
            if len(calls) == after:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        monkeypatch.setattr("unroll_jax.train.search.trials.train_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(over, name, trials=trials)
        assert go(over, name, trials=trials) == whole, name
        first, second = (json.loads((tmp_path / folder / "search.json").read_text()) for folder in (name, "whole"))
        assert first == second, name
        assert len(calls) == trials + 1, name


def test_tpe_closes_in_on_the_best_rate(go):
    def distance(trial):
        return abs(math.log10(trial["primal-rate"]) + 3.0)

    values = values_of(go({"primal-rate": "1e-9:1e-2"}, trials=30))
    random, late = values[:10], values[20:]
    assert sum(map(distance, late)) < 0.5 * sum(map(distance, random))
    assert len({value["primal-rate"] for value in values}) == 30


def test_the_seed_decides_what_is_tried(go):
    first, again, other = (
        values_of(go(RATES, name, trials=3, config=VideoConfig(seed=seed)))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again
    assert first != other


def test_ends_that_are_refused_only_together_are_refused_before_anything_is_trained(go, trained, tmp_path):
    over = {"dual-rate": "0.1:10", "resilience": "none,3,10"}
    for name, text in over.items():
        go({name: text}, name, trials=1)
    with pytest.raises(UserError, match=r"a trial with dual-rate 10, resilience 3 would be refused: --constraints.res"):
        go(over, "both", trials=1)
    assert not (tmp_path / "both").exists()
