"""Small deep OptEq classifiers, and their equilibria in NumPy: the layers of the
paper, iterated by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.energies import opteq_reference as reference
from tests.models.drawing import drawn, normal
from tests.reference import jax_array

VECTORS = {
    "convolutional": False,
    "channels": 6,
    "widths": (5, 7),
    "skip": 0.8,
    "activation": "leaky_relu",
}
IMAGES = {"channels": 3, "widths": (4, 2), "input_layers": (2,), "features": 2}
EXACT = {
    "param_dtype": jnp.float64,
    "tol": 1e-12,
    "max_steps": 2000,
    "on_failure": "error",
}


def vectors(*batch, dtype=jnp.float64):
    return normal(*batch, 4, dtype=dtype)


def images(*batch, dtype=jnp.float64):
    return normal(*batch, 4, 5, 2, dtype=dtype)


def start(model, x, size=0.8, scale=0.4):
    params = drawn(model, x, scale=scale)["params"]
    for place in range(1, len(model.widths) + 1):
        W = np.asarray(params[f"layer_{place}"]["W"])
        norm = np.linalg.norm(np.asarray(W, np.float64).reshape(-1, W.shape[-1]), 2)
        params[f"layer_{place}"]["W"] = jax_array(W * (size / norm), W.dtype)
    return {"params": params}


def by_hand(model, params, x, steps=3000, z=None):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    x, image = np.asarray(x, np.float64), x.shape[:2]
    matrix = reference.conv_matrix if model.convolutional else reference.dense_matrix
    sigma = reference.SIGMA[model.activation]
    if model.features is not None:
        weights = next(iter(params["features"].values()))
        kernel = (
            matrix(weights["kernel"], image)
            if model.convolutional
            else weights["kernel"].T
        )
        x = sigma(
            kernel @ x.ravel()
            + np.tile(weights["bias"], len(kernel) // len(weights["bias"]))
        )
    z = (
        np.zeros(model.channels * (image[0] * image[1] if model.convolutional else 1))
        if z is None
        else z
    )
    for _ in range(steps):
        before = z
        for place in range(1, len(model.widths) + 1):
            weights = params[f"layer_{place}"]
            W = matrix(weights["W"], image)
            U = (
                matrix(weights["U"], image)
                if "U" in weights
                else np.zeros((len(W), x.size))
            )
            b = np.tile(weights["b"], len(W) // len(weights["b"]))
            z = reference.step(
                z, W, U, b, x.ravel(), activation=model.activation, skip=model.skip
            )
        if np.linalg.norm(z - before) < 1e-14:
            break
    return z.reshape(*image, model.channels) if model.convolutional else z


def logits_by_hand(params, z):
    head = params["params"]["head"]["Dense_0"]
    pooled = z.mean((0, 1)) if z.ndim == 3 else z
    return pooled @ np.asarray(head["kernel"], np.float64) + np.asarray(
        head["bias"], np.float64
    )
