"""The kernel for all pairs of tokens: tests, then times against cuDNN and XLA."""

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
    """Sizes of the cases, and what is run."""

    tokens: tuple[int, ...]  # of a sequence, in this order
    batch_tokens: int  # of all sequences of a batch
    dim: int
    rhos: tuple[str, ...]  # other than softmax
    blocks: tuple[int, ...]  # sizes of blocks, in addition to the default
    repeats: int
    tests: Path | None  # folder of tests to run first


FULL = Sizes(
    tokens=(4096, 1024, 16_384),
    batch_tokens=32_768,
    dim=64,
    rhos=("log", "student"),
    blocks=(32,),
    repeats=10,
    tests=tested.ROOT / "tests",
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
        """The start of the names of figures."""
        words = [f"n={self.tokens}", self.dtype, self.rho, self.kernel]
        if self.block:
            words.append(f"block {self.block}")
        what = "step_and_energy" if self.energy else "step"
        return f"{', '.join(words)}: {what}_and_gradient"


def measure(sizes: Sizes) -> Iterator[Record]:
    """Runs tests marked gpu, then measures time and memory of every case."""
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
                # of any kind: a block may be too large for this GPU, others run still
                except Exception as error:
                    message = " ".join(str(error).split())[:200]
                    record.notes.append(f"{case.name} failed: {message}")
                    continue
                runs[case.name] = functools.partial(_run, program, _tokens(shape))
                memory = temporary_mebibytes(program)
                record.figures[f"{case.name} temporary_mebibytes"] = memory
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
    first = tokens == sizes.tokens[0]
    for dtype in ("bfloat16", "float32"):
        case = _Case(tokens, dtype, "softmax", "pallas", energy=True)
        softmax = [case, case._replace(kernel="xla")]
        if dtype == "bfloat16":
            without = case._replace(energy=False)
            softmax += [without._replace(kernel="cudnn"), without]
            if first:
                softmax += [case._replace(block=block) for block in sizes.blocks]
        yield softmax
        # Compiling takes most of the part's time: float32 of other rho only at the
        # first number of tokens.
        if first or dtype == "bfloat16":
            for rho in sizes.rhos:
                other = case._replace(rho=rho)
                yield [other, other._replace(kernel="xla")]


def _compare(record: Record, case: _Case) -> None:
    """Adds the ratios of a case's time to those of cuDNN's step and the XLA code."""
    if case.kernel != "pallas":
        return
    for other in (
        case._replace(kernel="cudnn", energy=False, block=None),
        case._replace(kernel="xla", block=None),
    ):
        names = f"{case.name} seconds", f"{other.name} seconds"
        if set(names) <= set(record.figures):
            record.ratio(f"{case.name} over_{other.kernel}", *names)


def _program(sizes: Sizes, case: _Case) -> Program:
    layer = unroll_jax.attention(
        rho=case.rho, form="softmax", kernel=case.kernel, block=case.block
    )
    params = AttentionParams(None)

    def loss(y: jax.Array) -> tuple[jax.Array, Any]:
        if not case.energy:
            after = layer.step(params, y, None)
            return jnp.sum(after.astype(jnp.float32) ** 2), after
        assert layer.step_and_energy is not None
        after, energy = layer.step_and_energy(params, y, None)
        total = jnp.sum(after.astype(jnp.float32) ** 2) + jnp.sum(energy)
        return total, (after, energy)

    shape = (max(1, sizes.batch_tokens // case.tokens), case.tokens, sizes.dim)
    arguments = (jax.ShapeDtypeStruct(shape, case.dtype),)
    return Program(jax.value_and_grad(loss, has_aux=True), arguments, case.kernel)


def _tokens(shape: jax.ShapeDtypeStruct) -> jax.Array:
    values = np.random.default_rng(0).normal(size=shape.shape)
    return jnp.asarray(values / shape.shape[-1] ** 0.5, shape.dtype)


def _run(program: jax.stages.Compiled, tokens: jax.Array) -> Any:
    return jax.block_until_ready(program(tokens))
