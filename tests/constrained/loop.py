"""The primal-dual loop as a user writes it, scanned, for tests of where it ends."""

import jax
import jax.numpy as jnp
import optax

import unroll_jax as uj


def solve(optimizer, problem, x, steps, *, order="simultaneous", normalise=False, kinds="at_most", each=None):
    """The end (x, state) of a loop, and (x, multipliers) after every step.

    ``problem(x)`` gives the objective and the violations; with ``each`` it is ``problem(x, row)``, a row at each step.
    """

    def step(carry, row):
        x, state = carry
        at = problem if row is None else lambda x: problem(x, row)

        def value(x):
            objective, violations, *_ = at(x)
            prices, penalty = state.dual.multipliers, state.dual.penalty
            if penalty is None:
                return uj.lagrangian(objective, violations, prices, normalise=normalise), violations
            return uj.augmented_lagrangian(objective, violations, prices, penalty=penalty, kinds=kinds), violations

        gradient, violations = jax.grad(value, has_aux=True)(x)
        given = {"violations": violations} if order == "simultaneous" else {"problem": at}
        updates, state = optimizer.update(jax.tree.map(jnp.conj, gradient), state, x, **given)
        x = optax.apply_updates(x, updates)
        return (x, state), (x, state.dual.multipliers)

    return jax.jit(lambda start: jax.lax.scan(step, start, each, length=steps))((x, optimizer.init(x)))
