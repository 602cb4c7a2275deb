"""The unit layer and its energies in float64 NumPy, token by token."""

import numpy as np

# sigma, its antiderivative s, and the conjugate s*, written from their definitions.
SIGMA = {
    "relu": lambda t: np.maximum(t, 0.0),
    "tanh": np.tanh,
    "soft_threshold": lambda t: np.sign(t) * np.maximum(np.abs(t) - 1.0, 0.0),
}
ANTIDERIVATIVE = {
    "relu": lambda t: 0.5 * np.maximum(t, 0.0) ** 2,
    "tanh": lambda t: np.log(np.cosh(t)),
    "soft_threshold": lambda t: 0.5 * np.maximum(np.abs(t) - 1.0, 0.0) ** 2,
}
CONJUGATE = {
    "relu": lambda t: np.where(t >= -1e-9, 0.5 * t**2, np.inf),
    "tanh": lambda t: t * np.arctanh(t) + 0.5 * np.log1p(-(t**2)),
    "soft_threshold": lambda t: 0.5 * t**2 + np.abs(t),
}


def reference_energy(y, W, U, b, x, *, mu, activation):
    """|z|^2 / 2 - 1^T s(W z + U x + b) / mu, token by token."""
    hidden = [W @ z + U @ e + b for z, e in zip(y, x, strict=True)]
    return 0.5 * np.sum(y**2) - sum(np.sum(ANTIDERIVATIVE[activation](t)) for t in hidden) / mu


def reference_conjugate(y, W, U, b, x, *, activation):
    """Eq. 3: 1^T s*(W^-T z) - <f(x), W^-T z> - |z|^2 / 2, token by token."""
    total = 0.0
    for z, e in zip(y, x, strict=True):
        preimage = np.linalg.inv(W).T @ z
        total += np.sum(CONJUGATE[activation](preimage)) - (U @ e + b) @ preimage - 0.5 * z @ z
    return total


def reference_step(y, W, U, b, x, *, mu, activation, skip=1.0):
    layer = [W.T @ SIGMA[activation](W @ z + U @ e + b) / mu for z, e in zip(y, x, strict=True)]
    return (1.0 - skip) * y + skip * np.array(layer)
