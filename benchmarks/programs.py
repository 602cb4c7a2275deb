"""What traced programs do: their equations, and operations of their products."""

import math
from collections.abc import Iterator
from typing import Any

__all__ = ["equations", "product_flops"]


def equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Every equation of a jaxpr and of those inside, and how often it runs.

    The body of a `while` counts once, and of branches only the first.
    """
    for equation in jaxpr.eqns:
        yield equation, times
        params = equation.params
        inside = times * params.get("length", 1)
        if equation.primitive.name == "pallas_call":
            inside = times * math.prod(params["grid_mapping"].grid)
        for name, value in params.items():
            value = value[0] if name == "branches" else value
            value = getattr(value, "jaxpr", value)
            if hasattr(value, "eqns"):
                yield from equations(value, inside)


def product_flops(jaxpr: Any) -> float:
    """Operations of the products and convolutions of a jaxpr."""
    total = 0.0
    for equation, times in equations(jaxpr):
        params = equation.params
        name = equation.primitive.name
        if name == "dot_general":
            contracted, _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted[0])
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            inner = kernel.size / kernel.shape[params["dimension_numbers"].rhs_spec[0]]
        else:
            continue
        total += 2.0 * times * equation.outvars[0].aval.size * inner
    return total
