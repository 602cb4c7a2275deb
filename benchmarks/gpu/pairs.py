"""The kernel for all pairs of tokens: right first, then against cuDNN's attention
and the library's XLA code."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.gpu import tested
from benchmarks.gpu.ahead import Program
from benchmarks.record import Record
from benchmarks.timing import interleaved, temporary_mebibytes
from unroll_jax.energies import AttentionParams

__all__ = ["FULL", "QUICK", "Sizes", "measure", "programs"]


class Sizes(NamedTuple):
    """Numbers of tokens, the first first; tokens in a batch, their width, other
    functions rho, blocks, runs, tests."""

    tokens: tuple[int, ...]
    batch_tokens: int
    dim: int
    rhos: tuple[str, ...]
    blocks: tuple[int, ...]
    repeats: int
    tests: Path | None


FULL = Sizes(
    (4096, 1024, 16_384),
    32_768,
    64,
    ("log", "student"),
    (32,),
    10,
    tested.ROOT / "tests",
)
QUICK = FULL._replace(tokens=(1024,), batch_tokens=4096, blocks=(), repeats=5)


class _Case(NamedTuple):
    """The step, or the step and the energy, with the gradient."""

    tokens: int
    dtype: str
    rho: str
    kernel: str
    energy: bool
    block: int | None = None

    @property
    def name(self) -> str:
        """The words that figures begin with."""
        words = [
            f"n={self.tokens}",
            self.dtype,
            self.rho,
            self.kernel,
            *([f"block {self.block}"] * bool(self.block)),
        ]
        return f"{', '.join(words)}: step{'_and_energy' * self.energy}_and_gradient"


def measure(sizes: Sizes) -> Iterator[Record]:
    """Tests marked gpu, then seconds of every case, its memory, and ratios to cuDNN
    and to the XLA code."""
    record = Record()
    if sizes.tests is not None:
        record = tested.measure(sizes.tests)
        yield record
    for tokens in sizes.tokens:
        for cases in _groups(sizes, tokens):
            runs = {}
            for case in cases:
                function, (shape,), _ = _program(sizes, case)
                try:
                    program = jax.jit(function).lower(shape).compile()
                # of any kind: a block may be too large for this GPU, and others go on
                except Exception as error:
                    record.notes.append(
                        f"{case.name} failed: {' '.join(str(error).split())[:200]}"
                    )
                    continue
                runs[case.name] = functools.partial(_run, program, _tokens(shape))
                record.figures[f"{case.name} temporary_mebibytes"] = (
                    temporary_mebibytes(program)
                )
            for name, seconds in interleaved(runs, repeats=sizes.repeats).items():
                record.time(f"{name} seconds", seconds)
            for case in cases:
                _compare(record, case)
            yield record


def programs(sizes: Sizes) -> dict[str, Program]:
    """The programs of the first number of tokens, by name."""
    cases = [case for group in _groups(sizes, sizes.tokens[0]) for case in group]
    return {case.name: _program(sizes, case) for case in cases}


def _groups(sizes: Sizes, tokens: int) -> Iterator[list[_Case]]:
    """Cases that are timed in turns."""
    for dtype in ("bfloat16", "float32"):
        softmax = [
            _Case(tokens, dtype, "softmax", kernel, True)
            for kernel in ("pallas", "xla")
        ]
        if dtype == "bfloat16":
            softmax += [
                _Case(tokens, dtype, "softmax", kernel, False)
                for kernel in ("cudnn", "pallas")
            ]
            if tokens == sizes.tokens[0]:
                softmax += [
                    _Case(tokens, dtype, "softmax", "pallas", True, block)
                    for block in sizes.blocks
                ]
        yield softmax
        # Compiling takes most of the part's time: float32 of other rho only at the
        # first number of tokens.
        for rho in (
            sizes.rhos if dtype == "bfloat16" or tokens == sizes.tokens[0] else ()
        ):
            yield [
                _Case(tokens, dtype, rho, kernel, True) for kernel in ("pallas", "xla")
            ]


def _compare(record: Record, case: _Case) -> None:
    """Adds how many times the time of cuDNN's step, or of the XLA code, a case
    takes."""
    others = [
        case._replace(kernel="cudnn", energy=False, block=None),
        case._replace(kernel="xla", block=None),
    ]
    for other in others if case.kernel == "pallas" else ():
        if {f"{one.name} seconds" for one in (case, other)} <= set(record.figures):
            record.ratio(
                f"{case.name} over_{other.kernel}",
                f"{case.name} seconds",
                f"{other.name} seconds",
            )


def _program(sizes: Sizes, case: _Case) -> Program:
    layer = unroll_jax.attention(
        rho=case.rho, form="softmax", kernel=case.kernel, block=case.block
    )

    def loss(y: jax.Array) -> tuple[jax.Array, Any]:
        if not case.energy:
            after = layer.step(AttentionParams(None), y, None)
            return jnp.sum(after.astype(jnp.float32) ** 2), after
        assert layer.step_and_energy is not None
        after, energy = layer.step_and_energy(AttentionParams(None), y, None)
        return jnp.sum(after.astype(jnp.float32) ** 2) + jnp.sum(energy), (
            after,
            energy,
        )

    shape = (max(1, sizes.batch_tokens // case.tokens), case.tokens, sizes.dim)
    arguments = (jax.ShapeDtypeStruct(shape, case.dtype),)
    return Program(jax.value_and_grad(loss, has_aux=True), arguments, case.kernel)


def _tokens(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.asarray(
        np.random.default_rng(0).normal(size=shape.shape) / shape.shape[-1] ** 0.5,
        shape.dtype,
    )


def _run(program: jax.stages.Compiled, tokens: jax.Array) -> Any:
    return jax.block_until_ready(program(tokens))
