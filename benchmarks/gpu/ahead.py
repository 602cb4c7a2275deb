"""Programs for an H100 on a machine without one: lowered, their operations counted."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax

from benchmarks.programs import product_flops
from benchmarks.record import Record
from benchmarks.timing import temporary_mebibytes
from unroll_jax.energies.attention import kernel_choice

__all__ = ["Program", "ahead_of_time", "for_an_h100"]

TRITON = "__gpu$xla.gpu.triton"  # a call that `jax.export` does not promise to keep
# Checks of the machine by attention with cuDNN. An H100 with cuDNN 9.10 passes them.
CUDNN = {
    "check_cudnn_version": 91000,
    "check_compute_capability": True,
    "is_cuda_compute_capability_equal": False,
}


class Program(NamedTuple):
    """A function with arguments for it, and the kernel in it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # arrays, or their shapes
    kernel: str | None = "xla"  # the only one that a CPU compiles


def ahead_of_time(programs: Mapping[str, Program]) -> Record:
    """Operations of products, arguments and lowered size of every program.

    And temporary memory, if a CPU compiles it.
    """
    note = "lowered for an H100; temporary memory is by the compiler for this CPU"
    record = Record(notes=[f"ahead of time: {note}"])
    for name, program in programs.items():
        leaves = jax.tree.leaves(program.arguments)
        sizes = (math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        record.figures[f"{name} argument_mebibytes"] = sum(sizes) / 2**20
        module, flops = for_an_h100(program)
        record.figures[f"{name} product_gigaflops"] = flops / 1e9
        record.figures[f"{name} lowered_kilobytes"] = len(module) / 1e3
        if program.kernel == "xla":
            compiled = jax.jit(program.function).lower(*program.arguments).compile()
            memory = temporary_mebibytes(compiled)
            record.figures[f"{name} temporary_mebibytes"] = memory
    return record


def for_an_h100(program: Program) -> tuple[str, float]:
    """The module for an H100, and the operations of its products.

    Products inside cuDNN do not count.
    """
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    device = AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    mesh = AbstractMesh((1,), ("x",), abstract_device=device)
    answers: Any = {
        name: lambda *_, answer=answer: answer for name, answer in CUDNN.items()
    }
    jitted = jax.jit(program.function)
    with (
        mock.patch.object(kernel_choice, "PLATFORM", "gpu"),
        mock.patch.multiple("jax._src.cudnn.fused_attention_stablehlo", **answers),
        warnings.catch_warnings(),
    ):
        pallas = "The Pallas Triton backend"
        warnings.filterwarnings("ignore", pallas, DeprecationWarning)
        traced = jitted.trace(*program.arguments)
        flops = product_flops(traced.jaxpr.jaxpr)
        # cuDNN's call asks for devices, and an abstract mesh has none
        if program.kernel == "cudnn":
            return traced.lower(lowering_platforms=("cuda",)).as_text(), flops
        with use_abstract_mesh(mesh):
            checks = [jax.export.DisabledSafetyCheck.custom_call(TRITON)]
            export = jax.export.export(
                jitted, platforms=["cuda"], disabled_checks=checks
            )
            return export(*program.arguments).mlir_module(), flops
