"""Layers against their equations in float64 NumPy, many in one program."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.testing import assert_allclose

from tests.reference import compiled, gaussian_like
from unroll_jax import DESCENTS
from unroll_jax.descent import Descent


class Case(NamedTuple):
    """A layer, its parameters, state and input, and what energy and step must be."""

    layer: Descent
    params: Any
    y: Any
    x: Any
    energy: Any
    step: Any


def both(layer, *args):
    return layer.energy(*args), layer.step(*args)


def assert_equal(
    cases: Mapping[Any, Case], rtol: float = 1e-12, atol: float = 1e-13
) -> None:
    layers = [case.layer for case in cases.values()]
    points = [case[1:4] for case in cases.values()]

    @compiled
    def run(points):
        return [
            both(layer, *point) for layer, point in zip(layers, points, strict=True)
        ]

    for (name, case), (energy, stepped) in zip(cases.items(), run(points), strict=True):
        assert energy.shape == np.shape(case.energy), name
        assert stepped.shape == np.shape(case.y), name
        assert_allclose(energy, case.energy, rtol=rtol, err_msg=f"{name}: energy")
        assert_allclose(
            stepped, case.step, rtol=rtol, atol=atol, err_msg=f"{name}: step"
        )


def assert_derivative(
    value: Callable, point: Any, rtol: float, atol: float = 0.0
) -> None:
    """The derivative of a function of a tree, in reverse mode and along one
    direction, is the central difference."""
    h = 1e-6
    direction = gaussian_like(point, seed=3)
    at = lambda t: value(jax.tree.map(lambda leaf, d: leaf + t * d, point, direction))
    along = compiled(jax.value_and_grad(at))
    assert_allclose(
        along(0.0)[1], (along(h)[0] - along(-h)[0]) / (2 * h), rtol=rtol, atol=atol
    )


def shapes_of(name: str, batch: tuple[int, ...] = ()) -> tuple[Descent, Any, Any, Any]:
    """A system of `DESCENTS`, and the shapes of its parameters, state and input."""
    layers = []

    def example(key):
        layer, y, x = DESCENTS[name].example(key, batch)
        layers.append(layer)
        return layer.init(key), y, x

    shapes = jax.eval_shape(lambda: example(jax.random.key(0)))
    return layers[0], *shapes
