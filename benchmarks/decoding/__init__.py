"""Tokens a second of a decoder, plainly and drafted by its first layers.

Two decoders: a random one whose last half of the layers adds nothing, so that every draft of the others stands, which
is the most that drafts can bring; and SmolLM2 on a few instructions, where the package that brings it is installed. Or
those of runs (`--runs A B ...`), each beside its own plain decoding.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.decoding.cases import ENOUGH, Case, Sizes, of_runs, random, smollm2
from benchmarks.decoding.costs import measured_costs
from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate, table
from unroll_jax.models import (
    Acceptance,
    Costs,
    acceptance,
    expected_speedup,
    generate,
    speculate,
    tokens_a_call,
    weight_costs,
)
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.instructions import read_prompts

__all__ = ["FULL", "QUICK", "Case", "Sizes", "main"]

FULL = Sizes()
QUICK = Sizes(batches=(4,), tokens=16, repeats=2, real_prompts=1, test_prompts=2, real_tokens=16, real_repeats=1)


class Draft(NamedTuple):
    """An exit layer with the draft length that is expected to be quickest."""

    exit_layer: int
    draft_length: int
    tokens: float  # a verification
    expected: float


def main(*, quick: bool = False, peers: bool = True, runs: Sequence[Path] = (), prompts: Path | None = None) -> Record:
    """Prints tokens a second, plain and drafted, what drafts stand, and what that was expected to bring."""
    del peers
    sizes, record = QUICK if quick else FULL, Record()
    record.notes.append("Greedy answers; times are of whole answers, the pass over the prompt among them.")
    record.notes.append("A speed-up is the median of ratios of runs one after the other, plain over drafted.")
    if runs:
        texts = None if prompts is None else [prompt.text for prompt in read_prompts(prompts)]
        cases = of_runs(runs, sizes, texts)
    else:
        cases = [random(sizes, batch) for batch in sizes.batches] + [smollm2(sizes)]
    best = [_measure(record, case) for case in cases if case is not None]
    if runs:
        print("\nthe exit of each that was expected to be quickest")
        print(table(["run", "ms a token", "drafted", "by", "speed-up"], best))
    record.draw = record.draw_times
    return record


def _measure(record: Record, case: Case) -> list[str]:
    """Adds the times of a case and what follows from them to the record, prints them, and returns those of the draft
    that was expected to be quickest."""
    config = case.config
    options: dict[str, Any] = {"max_tokens": case.tokens, "stops": case.stops}

    def answers(run: Callable[..., Any], batches: Any = case.batches, **draft: int) -> list[Any]:
        return jax.block_until_ready([run(config, case.params, batch, **draft, **options) for batch in batches])

    plain = jax.device_get(answers(generate))
    others = jax.device_get(answers(generate, case.choosing)) if case.choosing else plain
    measured = _on_answers(case, case.choosing or case.batches, others)
    costs = measured_costs(config, case.params, batch=len(case.batches[0]))
    record.figures[f"{case.name}_further_token_over_first"] = costs.further
    drafts = {f"exit_{layer}": _chosen(case, layer, measured, costs) for layer in case.exits}
    calls: dict[str, Callable[[], Any]] = {"plain": lambda: answers(generate)}
    same = {}
    for who, draft in drafts.items():
        sizes = {"exit_layer": draft.exit_layer, "draft_length": draft.draft_length}
        calls[who] = lambda sizes=sizes: answers(speculate, **sizes)
        same[who] = all(np.array_equal(one.tokens, two.tokens) for one, two in zip(calls[who](), plain, strict=True))
    seconds = interleaved(calls, repeats=case.repeats, warmup=0)  # all have run once
    count = sum(int(one.lengths.sum()) for one in plain)
    _add_times(record, case, seconds, count)
    rows = [["plain", *_speed(seconds["plain"], count)]]
    for who, draft in drafts.items():
        ratio = record.time(f"{case.name}_{who}_speedup", seconds["plain"] / seconds[who])
        _add_draft(record, f"{case.name}_{who}", draft, measured)
        rate = f"{measured.rates[draft.exit_layer]:.0%}"
        cells = [rate, str(draft.draft_length), f"{draft.tokens:.2f}", f"{ratio:.2f}", f"{draft.expected:.2f}"]
        rows.append([who, *_speed(seconds[who], count), *cells, "yes" if same[who] else "no"])
    rows[0] += [""] * 6
    header = ["who", "ms a token", "tokens/s", "acceptance", "draft", "tokens a call", "speed-up", "expected"]
    batch, several = len(case.batches[0]), len(case.batches)
    print(f"\n{case.name}, {config.num_layers} layers, {config.dim} wide, {several} x {batch} prompts, {count} tokens")
    print(table([*header, "same answers"], rows))
    _tell_acceptance(record, case, measured)
    best = max(drafts, key=lambda who: drafts[who].expected)
    (row,) = (row for row in rows if row[0] == best)
    return [case.name, rows[0][1], row[1], best, row[6]]


def _tell_acceptance(record: Record, case: Case, measured: Acceptance) -> None:
    """Prints the acceptance of every layer, and which prompts it is of, and adds both to the record."""
    record.notes.append(f"{case.name}: {_chosen_on(case)}")
    listed = " ".join(f"{layer}:{rate:.0%}" for layer, rate in enumerate(measured.rates))
    print(f"{_chosen_on(case)}\nacceptance by layer: {listed}")
    record.figures |= {
        f"{case.name}_layer_{layer}_acceptance": float(rate) for layer, rate in enumerate(measured.rates)
    }


def _chosen_on(case: Case) -> str:
    """Says which prompts drafts were chosen on, and which were timed."""
    if len(case.draft_lengths) == 1:
        return "drafts are given, and none is chosen"
    if not case.choosing:
        return f"drafts are chosen on the same prompts that are timed: there are fewer than {ENOUGH}"
    first, rest = (sum(map(len, batches)) for batches in (case.choosing, case.batches))
    return f"acceptance and drafts are of the first {first} prompts, times of the other {rest}"


def _chosen(case: Case, layer: int, measured: Acceptance, costs: Costs) -> Draft:
    """The quickest draft length of a layer, by what was measured."""

    def draft(length: int) -> Draft:
        tokens = tokens_a_call(measured, layer, length)
        return Draft(layer, length, tokens, expected_speedup(case.config, layer, length, tokens, costs))

    return max(map(draft, case.draft_lengths), key=lambda one: one.expected)


def _add_times(record: Record, case: Case, seconds: dict[str, np.ndarray], count: int) -> None:
    config, weights = case.config, weight_costs(case.config)
    flops = 2.0 * count * (config.num_layers * weights.layer + weights.head)
    rate = matmul_rate(len(case.batches[0]), config.dim, config.hidden_dim)
    for who, times in seconds.items():
        value = record.time(f"{case.name}_{who}_seconds", times, flops=flops, rate=rate)
        record.figures[f"{case.name}_{who}_tokens_a_second"] = count / value


def _add_draft(record: Record, name: str, draft: Draft, measured: Acceptance) -> None:
    record.figures |= {
        f"{name}_acceptance": float(measured.rates[draft.exit_layer]),
        f"{name}_draft_length": draft.draft_length,
        f"{name}_tokens_a_verification": draft.tokens,
        f"{name}_expected_speedup": draft.expected,
    }


def _speed(seconds: np.ndarray, count: int) -> list[str]:
    """Milliseconds a token and tokens a second."""
    value = float(np.median(seconds))
    return [f"{1e3 * value / count:.2f}", f"{count / value:.1f}"]


def _on_answers(case: Case, batches: Sequence[Sequence[np.ndarray]], plain: Sequence[Any]) -> Acceptance:
    """Acceptance on the plain answers to batches of prompts, which is what drafts meet there."""
    prompts = [prompt for batch in batches for prompt in batch]
    if max(int(one.lengths.max()) for one in plain) < 2:
        raise UserError(f"every answer of {case.name} ends with its first token; give other prompts with --prompts")
    answers = [(row, length) for one in plain for row, length in zip(one.tokens, one.lengths, strict=True)]
    texts = [
        np.concatenate([prompt, row[: length - 1]]) for prompt, (row, length) in zip(prompts, answers, strict=True)
    ]
    return acceptance(case.config, case.params, texts, starts=[len(prompt) for prompt in prompts])
