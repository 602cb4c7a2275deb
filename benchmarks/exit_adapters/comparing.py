"""Drafted answers timed against plain ones, prompt by prompt."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.record import Record
from benchmarks.timing import table
from unroll_jax.models import ExitAdapter, Speculated, generate, prompt_lookup, speculate
from unroll_jax.train.loading import Opened

__all__ = ["compare"]

TEMPERATURE = 0.7
FEWER = 50  # prompts that are answered by sampling, and by parameters in bfloat16, too


class Timed(NamedTuple):
    """Answers to prompts, one at a time, and the seconds of each."""

    answers: list[Any]
    seconds: np.ndarray


def compare(
    record: Record,
    opened: Opened,
    prompts: Sequence[np.ndarray],
    adapter: ExitAdapter,
    layer: int,
    length: int,
    tokens: int,
) -> None:
    """Times answers, all kinds in turns on each prompt, and counts greedy ones that have the tokens of plain ones."""
    kinds = _kinds(opened, adapter, layer, length)
    stops = opened.tokenizer.stops
    greedy = _timed(kinds, prompts, tokens, stops)
    count = sum(int(one.lengths[0]) for one in greedy["plain"].answers)
    print(f"\nexit {layer}, drafts of {length}; {len(prompts)} prompts of Alpaca, {count} tokens of greedy answers")
    _report(record, "greedy", greedy, same=True)

    plain, first = {"plain": kinds["plain"]}, prompts[:FEWER]
    params, weights = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), (opened.params, adapter.weights))
    halves = _kinds(opened._replace(params=params), adapter._replace(weights=weights), layer, length)
    stored = {f"{name}, in bfloat16": halves[name] for name in ("plain", "adapter")}
    print(f"\nthe first {len(first)}; parameters stored in bfloat16, computed with in float32")
    _report(record, "stored", _timed(plain | stored, first, tokens, stops), same=True)

    sampled = _timed(plain | {"adapter": kinds["adapter"]}, first, tokens, stops, temperature=TEMPERATURE)
    print(f"\nthe first {len(first)}, sampled at temperature {TEMPERATURE}")
    _report(record, "sampled", sampled, same=False)


def _kinds(opened: Opened, adapter: ExitAdapter, layer: int, length: int) -> dict[str, Callable[..., Any]]:
    given = (opened.config, opened.params)
    drafted = partial(speculate, *given, exit_layer=layer, draft_length=length)
    return {
        "plain": partial(generate, *given),
        "adapter": partial(drafted, adapter=adapter),
        "plain exit": drafted,
        "prompt look-up": partial(prompt_lookup, *given, draft_length=length),
    }


def _timed(
    kinds: dict[str, Callable[..., Any]],
    prompts: Sequence[np.ndarray],
    tokens: int,
    stops: Sequence[int],
    temperature: float = 0.0,
) -> dict[str, Timed]:
    """Answers of each kind; kinds take turns on each prompt, after one for each shape that is not timed."""
    options = {"max_tokens": tokens, "stops": stops, "dtype": "float32"}

    def answer(name: str, number: int) -> Any:
        drawn = {"temperature": temperature, "key": jax.random.key(number)} if temperature else {}
        return jax.device_get(kinds[name]([prompts[number]], **options, **drawn))

    shapes = {1 << (len(prompt) - 1).bit_length(): number for number, prompt in enumerate(prompts)}
    for number in shapes.values():
        for name in kinds:
            answer(name, number)
    answers, seconds = {name: [] for name in kinds}, {name: [] for name in kinds}
    for number in range(len(prompts)):
        for name in kinds:
            began = time.perf_counter()
            answers[name].append(answer(name, number))
            seconds[name].append(time.perf_counter() - began)
    return {name: Timed(answers[name], np.array(seconds[name])) for name in kinds}


def _report(record: Record, how: str, results: dict[str, Timed], *, same: bool) -> None:
    plain, rows = results["plain"], []

    def cost(timed: Timed) -> np.ndarray:
        return timed.seconds / np.array([int(one.lengths[0]) for one in timed.answers])

    for name, timed in results.items():
        key = f"{how}_{name}_".replace(",", "").replace(" ", "_").replace("-", "")
        ratio = record.time(f"{key}speedup", cost(plain) / cost(timed))
        total = _rate(timed) / _rate(plain)
        low, high = _interval(plain, timed)
        record.figures |= {f"{key}total_speedup": total, f"{key}low": low, f"{key}high": high}
        row = [name, f"{1e3 / _rate(timed):.1f}", f"{total:.2f} ({low:.2f} to {high:.2f})", f"{ratio:.2f}"]
        alike: Any = ""
        if same and name != "plain":
            pairs = zip(timed.answers, plain.answers, strict=True)
            alike = record.figures[f"{key}same"] = sum(np.array_equal(*(one.tokens for one in pair)) for pair in pairs)
        row.append(str(alike))
        if isinstance(timed.answers[0], Speculated):
            stood, drawn, calls = (
                sum(int(getattr(one, part)[0]) for one in timed.answers) for part in ("accepted", "drafted", "calls")
            )
            record.figures |= {f"{key}acceptance": stood / max(1, drawn), f"{key}a_call": 1.0 + stood / max(1, calls)}
            row += [f"{stood / max(1, drawn):.0%}", f"{1.0 + stood / max(1, calls):.2f}"]
        rows.append(row + [""] * (7 - len(row)))
    heads = ["who", "ms a token", "speed-up (95%)", "median prompt", "same answers", "stand", "tokens a call"]
    print(table(heads, rows), flush=True)


def _rate(timed: Timed, chosen: np.ndarray | slice = slice(None)) -> float:
    """Tokens a second."""
    lengths = np.array([int(one.lengths[0]) for one in timed.answers])
    return float(lengths[chosen].sum() / timed.seconds[chosen].sum())


def _interval(plain: Timed, timed: Timed) -> tuple[float, float]:
    """Of the ratio of rates, by drawing prompts with replacement."""
    draws = np.random.default_rng(0).integers(len(plain.seconds), size=(2000, len(plain.seconds)))
    ratios = [_rate(timed, draw) / _rate(plain, draw) for draw in draws]
    return float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975))
