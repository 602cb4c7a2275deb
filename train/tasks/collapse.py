"""Collapse of a denoiser, detected by dead units, outputs that hardly vary, and multipliers that wind up."""

import numpy as np

# A trained layer leaves at most a few units silent; collapsed ones silence most of theirs.
DEAD_SHARE = 0.5
# Spread of an output over samples, relative to that of the input: a denoiser keeps most of it.
CONSTANT_SPREAD = 0.1
# Mean multipliers of feasible runs stay of the order of 1.
WOUND_UP = 5.0


def describe_collapse(
    dead: np.ndarray, spread: np.ndarray, layer_losses: np.ndarray, multipliers: np.ndarray
) -> str | None:
    """One plain sentence if the model has collapsed, else None.

    A model has collapsed when its output hardly depends on its input, or is no better than its input and a cause is in
    sight: dead units, a layer that hardly depends on the input, or multipliers winding up. Arrays are of layers 0..L.
    """
    constant = spread < CONSTANT_SPREAD * spread[0]
    # Under strong noise a constant output is better than the input.
    if layer_losses[-1] < layer_losses[0] and not constant[-1]:
        return None
    causes = []
    for layer in np.flatnonzero(dead[1:] > DEAD_SHARE)[:1] + 1:
        causes.append(f"dead units ({dead[layer]:.0%} of layer {layer} is 0 for every input)")
    for layer in np.flatnonzero(constant[1:])[:1] + 1:
        causes.append(f"constant output (layer {layer} hardly depends on the input)")
    if multipliers.size and np.max(multipliers) > WOUND_UP:
        causes.append(f"multipliers winding up (the largest is {np.max(multipliers):.1f})")
    if not causes:
        return None
    losses = f"output loss {layer_losses[-1]:.2f}, input {layer_losses[0]:.2f}"
    return f"the model has collapsed ({losses}): {', '.join(causes)}"
