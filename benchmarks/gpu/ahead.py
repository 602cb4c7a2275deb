"""Programs for an H100 from a machine without one: lowered ahead of time, their
operations and memory counted."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax

from benchmarks.record import Record
from benchmarks.timing import temporary_mebibytes
from unroll_jax.energies.attention import kernel_choice

__all__ = ["Program", "ahead_of_time", "for_an_h100", "product_flops"]

TRITON = "__gpu$xla.gpu.triton"  # a call that `jax.export` does not promise to keep
# Checks that attention by cuDNN makes of a machine; an H100 with cuDNN 9.10 passes
# them.
CUDNN = {
    "check_cudnn_version": 91000,
    "check_compute_capability": True,
    "is_cuda_compute_capability_equal": False,
}


class Program(NamedTuple):
    """A function with its arguments, arrays or shapes of such, and the kernel in it;
    a CPU compiles "xla" only."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    kernel: str | None = "xla"


def ahead_of_time(programs: Mapping[str, Program]) -> Record:
    """Operations of products, arguments and lowered size of every program;
    temporaries where a CPU compiles it."""
    record = Record(
        notes=[
            "ahead of time: lowered for an H100; temporaries are those of the compiler"
            " for this CPU"
        ]
    )
    for name, program in programs.items():
        sizes = (
            math.prod(leaf.shape) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(program.arguments)
        )
        record.figures[f"{name} argument_mebibytes"] = sum(sizes) / 2**20
        module, flops = for_an_h100(program)
        record.figures[f"{name} product_gigaflops"] = flops / 1e9
        record.figures[f"{name} lowered_kilobytes"] = len(module) / 1e3
        if program.kernel == "xla":
            compiled = jax.jit(program.function).lower(*program.arguments).compile()
            record.figures[f"{name} temporary_mebibytes"] = temporary_mebibytes(
                compiled
            )
    return record


def for_an_h100(program: Program) -> tuple[str, float]:
    """The module that is compiled on an H100, and the operations of its products;
    those inside cuDNN do not count."""
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    mesh = AbstractMesh(
        (1,),
        ("x",),
        abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu"),
    )
    answers: Any = {
        name: lambda *_, answer=answer: answer for name, answer in CUDNN.items()
    }
    jitted = jax.jit(program.function)
    with (
        mock.patch.object(kernel_choice, "PLATFORM", "gpu"),
        mock.patch.multiple("jax._src.cudnn.fused_attention_stablehlo", **answers),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings(
            "ignore", "The Pallas Triton backend", DeprecationWarning
        )
        flops = product_flops(
            jax.make_jaxpr(program.function)(*program.arguments).jaxpr
        )
        # its call asks for devices, which the mesh has not
        if program.kernel == "cudnn":
            return (
                jitted.trace(*program.arguments)
                .lower(lowering_platforms=("cuda",))
                .as_text(),
                flops,
            )
        with use_abstract_mesh(mesh):
            checks = [jax.export.DisabledSafetyCheck.custom_call(TRITON)]
            exported = jax.export.export(
                jitted, platforms=["cuda"], disabled_checks=checks
            )
            return exported(*program.arguments).mlir_module(), flops


def product_flops(jaxpr: Any) -> float:
    """Operations of the products and convolutions of a jaxpr; the body of a `while`
    counts once."""
    total = 0.0
    for equation in jaxpr.eqns:
        params, name = equation.params, equation.primitive.name
        if name == "dot_general":
            contracted, _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted[0])
            total += 2.0 * equation.outvars[0].aval.size * inner
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            inner = kernel.size / kernel.shape[params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * equation.outvars[0].aval.size * inner
        times = (
            math.prod(params["grid_mapping"].grid)
            if name == "pallas_call"
            else params.get("length", 1)
        )
        total += times * sum(map(product_flops, _inner(params)))
    return total


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs of an equation that run once each; of branches the first."""
    for name, value in params.items():
        value = value[0] if name == "branches" else value
        value = getattr(value, "jaxpr", value)
        if hasattr(value, "eqns"):
            yield value
