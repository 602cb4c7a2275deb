"""The choice of the exit layer and of the draft length, on answers to prompts that are neither trained on nor timed."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.exit_adapters.texts import Text
from benchmarks.record import Record
from unroll_jax.models import Acceptance, ExitAdapter, acceptance, expected_speedup, tokens_a_call
from unroll_jax.train.loading import Opened

__all__ = ["Judge", "best_exit", "best_length"]


class Judge(NamedTuple):
    """The decoder's greedy answers, which drafts are played through on."""

    opened: Opened
    answers: list[Text]

    def measured(self, adapters: Mapping[int, ExitAdapter]) -> Acceptance:
        """Acceptance of drafts of exit layers with these adapters, over all positions that have a next token."""
        texts = [one.tokens[:-1] for one in self.answers]
        starts = [one.first for one in self.answers]  # the prompt's pass gives the first token
        return acceptance(self.opened.config, self.opened.params, texts, starts=starts, adapters=adapters)


def best_exit(
    record: Record,
    judge: Judge,
    trained: Callable[[int, int], ExitAdapter],
    exits: Sequence[int],
    steps: int,
    draft_lengths: Sequence[int],
) -> int:
    """The exit whose adapter, after a few steps, promises the largest speed-up where weights are all that costs."""
    if len(exits) == 1:
        return exits[0]
    adapters = {layer: trained(layer, steps) for layer in exits}
    measured, config = judge.measured(adapters), judge.opened.config

    def promised(layer: int) -> float:
        return max(
            expected_speedup(config, layer, length, tokens_a_call(measured, layer, length), adapter=adapters[layer])
            for length in draft_lengths
        )

    for layer in exits:
        record.figures[f"pilot_exit_{layer}_acceptance"] = float(measured.rates[layer])
        print(
            f"pilot, exit {layer}: {measured.rates[layer]:.1%} of drafted tokens stand, {promised(layer):.2f}",
            flush=True,
        )
    return max(exits, key=promised)


def best_length(record: Record, judge: Judge, adapter: ExitAdapter, layer: int, costs: Mapping[int, float]) -> int:
    """The draft length with the most tokens for its measured cost, which is that over one of plain decoding."""
    measured = judge.measured({layer: adapter})
    tokens = {length: tokens_a_call(measured, layer, length) for length in costs}
    length = max(tokens, key=lambda one: tokens[one] / costs[one])
    record.figures |= {"exit_layer": layer, "draft_length": length, "acceptance": float(measured.rates[layer])}
    print(f"{measured.rates[layer]:.1%} of drafted tokens stand on {len(judge.answers)} prompts to choose by")
    for one, a_call in tokens.items():
        record.figures[f"draft_{one}_expected_speedup"] = a_call / costs[one]
        print(f"draft of {one}: {a_call:.2f} tokens a verification, expected speed-up {a_call / costs[one]:.2f}")
    return length
