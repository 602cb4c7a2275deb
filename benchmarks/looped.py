"""Do loops cost memory, or time to compile? Gradients of a looped transformer of 4, 16 and 64 loops."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.record import Record
from benchmarks.timing import table, temporary_mebibytes
from unroll_jax.models import DecoderConfig, LoopedTransformer

__all__ = ["main"]

LOOPS, REPEATS = (4, 16, 64), 3
WAYS = {
    "unrolled": {},
    "remat": {"remat": True},
    "implicit": {"gradient": "implicit", "batch_ndim": 1, "solver": "picard", "on_failure": "accept"},
}
BAR = 1.5  # time to compile 64 loops over that of 4
BATCH, TOKENS = 8, 64
CONFIG = DecoderConfig(256, dim=64, num_layers=2, num_heads=4, num_key_value_heads=2, hidden_dim=128)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints the time to compile and the temporary memory of a gradient, by the number of loops and the way."""
    del peers  # there are none
    loops, repeats = ((4, 64), 1) if quick else (LOOPS, REPEATS)
    cache = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    jax.config.update("jax_enable_compilation_cache", False)
    record, rows = Record(), []
    try:
        for way in WAYS:
            for count in loops:
                seconds, mebibytes = zip(*(_compiled(way, count) for _ in range(repeats)), strict=True)
                record.time(f"{way}_{count}_loops_compile_seconds", np.array(seconds))
                record.figures[f"{way}_{count}_loops_mebibytes"] = mebibytes[0]
                rows.append([way, str(count), f"{np.median(seconds):.2f}", f"{mebibytes[0]:.1f}"])
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    print(f"gradient of a looped transformer, {BATCH} x {TOKENS} tokens, median of {repeats}, {jax.default_backend()}")
    print(table(["gradient", "loops", "compile, s", "memory, MiB"], rows))
    for way in WAYS:
        over, under = (f"{way}_{count}_loops" for count in (loops[-1], loops[0]))
        compiled = record.ratio(f"{way}_compile_ratio", f"{over}_compile_seconds", f"{under}_compile_seconds")
        memory = record.ratio(f"{way}_memory_ratio", f"{over}_mebibytes", f"{under}_mebibytes")
        numbers = f"compile {compiled:.2f} (bar {BAR:.2f}), memory {memory:.2f}"
        print(f"{way}, {loops[-1]} loops / {loops[0]}: {numbers}")
    return record


def _compiled(way: str, loops: int) -> tuple[float, float]:
    """Seconds to trace, lower and compile the gradient of the loss of the last loop, and its temporary memory."""
    options = dict(WAYS[way])
    model = LoopedTransformer(CONFIG, remat=options.pop("remat", False))
    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)
    variables = jax.eval_shape(lambda tokens: model.init(jax.random.key(0), tokens, loops=1), tokens)

    def loss(variables: Any, tokens: jax.Array) -> jax.Array:
        def record(logits: jax.Array, _: jax.Array) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

        result: Any = model.apply(variables, tokens, loops=loops, record=record, **options)
        return result.records[-1]

    jax.clear_caches()
    began = time.perf_counter()
    program = jax.jit(jax.grad(loss)).lower(variables, tokens).compile()
    return time.perf_counter() - began, temporary_mebibytes(program)


if __name__ == "__main__":
    main()
