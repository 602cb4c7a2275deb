"""The primal-dual loop as a user writes it, scanned, for tests of where it ends."""

import jax
import jax.numpy as jnp
import optax

import unroll_jax as uj


def solve(optimizer, problem, x, steps, *, order="simultaneous", normalise=False, kinds=None, each=None, state=None):
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
            options = {"penalty": penalty, "kinds": kinds or "at_most"}
            return uj.augmented_lagrangian(objective, violations, prices, **options), violations

        gradient, violations = jax.grad(value, has_aux=True)(x)
        given = {"violations": violations} if order == "simultaneous" else {"problem": at}
        updates, state = optimizer.update(jax.tree.map(jnp.conj, gradient), state, x, **given)
        x = optax.apply_updates(x, updates)
        return (x, state), (x, state.dual.multipliers)

    start = x, optimizer.init(x) if state is None else state
    return jax.jit(lambda start: jax.lax.scan(step, start, each, length=steps))(start)
