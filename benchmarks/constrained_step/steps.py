"""One training step, plain or constrained, compiled, its state donated."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from unroll_jax.constrained import (
    Constraint,
    batch_violations,
    dual_ascent,
    lagrangian,
    multipliers_of,
    primal_dual,
)

__all__ = [
    "CompiledStep",
    "Problem",
    "State",
    "compiled_step",
    "planned_bytes",
    "repeated",
    "training_step",
]

PRIMAL_RATE, DUAL_RATE = 1e-4, 1e-2


class Problem(NamedTuple):
    """A model, its data and its constraints.

    ``last_loss(params, batch)`` is f_L; ``layer_losses(params, batch, step)`` is f_L
    and the losses of layers 0..L, which a sample of the batch may estimate. The
    constraints are on the latter.
    """

    name: str  # of the model
    init: Callable[[jax.Array], Any]
    batch: Any  # a pytree of arrays
    last_loss: Callable[[Any, Any], Array]
    layer_losses: Callable[[Any, Any, Array], tuple[Array, Array]]
    constraints: Mapping[str, Constraint]
    # of a step's matrix products: of plain risk, and added by the constraints
    flops: tuple[float, float]


class State(NamedTuple):
    """The state of training: steps done, parameters, and Adam's state, with the
    multipliers under constraints."""

    step: Int[Array, ""]
    params: Any
    opt_state: optax.OptState


class CompiledStep(NamedTuple):
    """A program ``(state, batch) -> (state, f_L, layer losses or None)``, the first
    state and the batch."""

    program: jax.stages.Compiled
    state: State
    batch: Any


def compiled_step(problem: Problem, *, constrained: bool) -> CompiledStep:
    """`training_step` compiled, with the first state of a fixed key."""
    init, step = training_step(problem, constrained=constrained)
    state = jax.jit(init)(jax.random.key(0))
    program = jax.jit(step, donate_argnums=0).lower(state, problem.batch).compile()
    return CompiledStep(program, state, problem.batch)


def training_step(
    problem: Problem, *, constrained: bool
) -> tuple[
    Callable[[jax.Array], State],
    Callable[[State, Any], tuple[State, Array, Array | None]],
]:
    """The functions ``key -> state`` and
    ``(state, batch) -> (state, f_L, layer losses or None)``.

    A step of plain risk, or one on the Lagrangian and then one on the multipliers;
    Adam, and ascent by SGD. Multipliers start at 1: no weight of a layer is 0 by
    chance.
    """
    optimizer = optax.with_extra_args_support(optax.adam(PRIMAL_RATE))
    if constrained:
        like = dict.fromkeys(problem.constraints, 0.0)
        ascent = dual_ascent(optax.sgd(DUAL_RATE))
        optimizer = primal_dual(optimizer, ascent, violations=like, start=1.0)

    def init(key: jax.Array) -> State:
        params = problem.init(key)
        return State(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    def objective(params: Any, state: State, batch: Any) -> tuple[Array, Any]:
        if not constrained:
            last = problem.last_loss(params, batch)
            return last, (last, None, {})
        last, losses = problem.layer_losses(params, batch, state.step)
        smooth, strict = batch_violations(problem.constraints, losses, None)
        value = lagrangian(last, smooth, multipliers_of(state.opt_state))
        return value, (last, losses, {"violations": strict})

    def step(state: State, batch: Any) -> tuple[State, Array, Array | None]:
        gradients, (last, losses, extra) = jax.grad(objective, has_aux=True)(
            state.params, state, batch
        )
        updates, opt_state = optimizer.update(
            gradients, state.opt_state, state.params, **extra
        )
        params = optax.apply_updates(state.params, updates)
        return State(state.step + 1, params, opt_state), last, losses

    return init, step


def planned_bytes(program: jax.stages.Compiled) -> int:
    """Returns the total of `train plan`: arguments, temporaries, and results that
    are in no argument's place."""
    analysis = program.memory_analysis()
    assert analysis is not None
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.argument_size_in_bytes + analysis.temp_size_in_bytes + results


def repeated(compiled: CompiledStep) -> Callable[[], tuple[Array, Array | None]]:
    """A call that takes the next step, waits for it, and returns its losses."""
    held = [compiled.state]

    def run() -> tuple[Array, Array | None]:
        held[0], last, losses = jax.block_until_ready(
            compiled.program(held[0], compiled.batch)
        )
        return last, losses

    return run
