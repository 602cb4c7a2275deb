"""A small convex problem under descent constraints, and its solution by cvxpy."""

import cvxpy
import jax.numpy as jnp
import numpy as np

ALPHA, REFERENCE = (0.2, 0.3, 0.1), 4.0
# f_l(x) = k_l/2 |x - p_l|^2 + h_l. The curvatures grow: every f_l - (1 - alpha_l) f_{l-1} is convex.
CURVATURES = np.array([0.5, 1.0, 1.5, 2.0])
CENTRES = np.array([[1.4, 0.1], [0.3, 0.9], [0.4, 1.5], [-1.2, 0.9]])
OFFSETS = np.array([3.0, 1.2, 0.3, 0.1])


def layer_losses(x):
    return jnp.sum(0.5 * CURVATURES[:, None] * (x - CENTRES) ** 2, axis=1) + OFFSETS


def known_solution(resilience):
    """x* and lambda* by cvxpy: each constraint written out as the convex quadratic that it is."""
    x, slacks = cvxpy.Variable(2), cvxpy.Variable(4, nonneg=True)

    def loss(weights):
        square = 0.5 * sum(w * k for w, k in zip(weights, CURVATURES, strict=True))
        linear = sum(w * k * p for w, k, p in zip(weights, CURVATURES, CENTRES, strict=True))
        constant = sum(
            w * (0.5 * k * p @ p + h) for w, k, p, h in zip(weights, CURVATURES, CENTRES, OFFSETS, strict=True)
        )
        return square * cvxpy.sum_squares(x) - linear @ x + constant

    weights = np.eye(4)
    rows = [loss(weights[0]) - REFERENCE]
    rows += [loss(weights[i + 1] - (1.0 - ALPHA[i]) * weights[i]) for i in range(3)]
    bounds = [row <= (0.0 if resilience is None else slacks[i]) for i, row in enumerate(rows)]
    cost = loss(weights[3]) + (0.0 if resilience is None else 0.5 * resilience * cvxpy.sum_squares(slacks))
    cvxpy.Problem(cvxpy.Minimize(cost), bounds).solve()
    return x.value, np.array([np.ravel(bound.dual_value)[0] for bound in bounds]), slacks.value
