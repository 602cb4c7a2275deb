"""Constraints that bound the loss of every layer: stepwise, cumulatively, or at levels."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, at_least, checked, in_interval, one_of, require
from unroll_jax.constrained.forms import FORMS
from unroll_jax.constrained.losses import as_losses, as_numbers

__all__ = ["BOUNDS", "LayerConstraints", "descent_constraints", "level_constraints"]

#: Bounds of `descent_constraints`: shares of the loss of the layer before, or of the reference.
BOUNDS = ("stepwise", "cumulative")

Losses = Float[Array, "*batch layers_and_one"]
Violations = Float[Array, "*batch constraints"]


@dataclasses.dataclass(frozen=True)
class LayerConstraints:
    """Violations of bounds on the last of the layer losses, as a function of them.

    Attributes:
      bounds: ``layer_losses (..., L + 1) -> bounds (..., C)``, in units of the losses, of the last C of them.
      form: "difference", "ratio" or "log_ratio", by which a loss is compared with its bound.

    Example:
      >>> import jax.numpy as jnp
      >>> constraints, losses = level_constraints([3.0, 1.0]), jnp.array([9.0, 4.5, 0.5])
      >>> constraints.bounds(losses).tolist(), constraints(losses).tolist()
      ([3.0, 1.0], [0.5, -0.5])
    """

    bounds: Callable[[Losses], Violations]
    form: str

    def __call__(self, layer_losses: Losses) -> Violations:
        """Returns the violations; positive entries are violated."""
        losses = as_losses("layer_losses", layer_losses)
        several = losses.ndim >= 1 and losses.shape[-1] >= 2
        require(several, "layer_losses", "hold f_0..f_L with L >= 1", f"shape {losses.shape}")
        bounds = self.bounds(losses)
        return FORMS[self.form](losses[..., losses.shape[-1] - bounds.shape[-1] :], bounds)


@checked(reference=POSITIVE, form=one_of(FORMS), bounds=one_of(BOUNDS), floor=at_least(0.0))
def descent_constraints(
    alpha: float | Sequence[float] | np.ndarray,
    *,
    reference: float | None = None,
    bounds: str = "stepwise",
    floor: float = 0.0,
    form: str | None = None,
    proxy: bool | None = None,
) -> LayerConstraints:
    r"""Violations of the layerwise descent constraints.

    .. math:: c_l = f_l - (1 - \alpha_l) f_{l-1} \le 0 , \; l = 1..L ; \qquad c_0 = f_0 - f_{ref} \le 0 .

    These are the paper's, ``bounds="stepwise"``. An early layer that does more than asked tightens the next bound, and
    with a trained readout a layer may be rewarded for a *larger* loss, as that eases the next constraint. Bounds that
    follow from the reference alone do neither, are met whenever the last layer's is and losses fall, and are what
    Theorem 2 concludes from the stepwise ones. With ``bounds="cumulative"``

    .. math:: f_l \le b_l = \max \Bigl( f_{ref} \prod_{k \le l} (1 - \alpha_k), \; \text{floor} \Bigr) .

    Two forms measure by how much of its bound a loss exceeds it, without units, so that one rate of the multipliers
    serves losses of any size:

    .. math:: \text{ratio: } c_l = \frac{f_l}{b_l} - 1 , \qquad \text{log\_ratio: } c_l = \log \frac{f_l}{b_l} .

    Of mean losses they are ratios of means. Taken sample by sample (`sample_constraints` with `mean_of_samples`) every
    sample counts alike. A loss whose bound is 0 (under 3e-10 in float32) has the violation 0.

    Args:
      alpha: the share of the loss every layer must remove, in (0, 1): one number, or one for each layer 1..L; numbers,
        not traced values. `suggest_alpha` proposes one.
      reference: f_ref > 0, bound on the loss at the embedded input; None leaves c_0 out. Cumulative bounds need it.
      bounds: one of `BOUNDS`.
      floor: least bound of layers 1..L, in units of the losses: one that plain training reaches at its end.
      form: "difference", "ratio" or "log_ratio"; None for "difference" with stepwise bounds, "ratio" with cumulative
        ones.
      proxy: take f_(l-1) for a constant in gradients. Then no layer is rewarded for a larger loss; values stay as they
        are, so that multipliers see the true violations. None for True, but False for stepwise differences.

    Returns:
      ``violations(layer_losses)``: layer losses f_0..f_L on the last axis, (..., L + 1), give (..., L), or (..., L + 1)
      with c_0 first when there is a reference. Positive entries are violated.

    Raises:
      ValueError: if an option is out of range, or cumulative bounds have no reference; while tracing, if layer_losses
        has fewer than two entries or their number does not fit the schedule.
      TypeError: if alpha is traced; while tracing, if layer_losses does not hold real numbers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, problem (4), Section 4 and Theorem 2. The fraction printed in its Tables
    1, 2 and 5 is 1 - alpha. Ratios: Hadou, NaderiAlizadeh, Ribeiro, "Robust stochastically-descending unrolled
    networks" (2024). Proxies: Cotter et al., "Two-player games for efficient non-convex constrained optimization"
    (2019).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> losses = jnp.array([4.0, 2.0, 2.0])
      >>> descent_constraints(0.25, reference=4.0)(losses).tolist()
      [0.0, -1.0, 0.5]
      >>> descent_constraints(0.5, reference=4.0, bounds="cumulative")(losses).tolist()
      [0.0, 0.0, 1.0]
      >>> [jax.grad(lambda f: descent_constraints(0.25, proxy=proxy)(f)[1])(losses).tolist() for proxy in (False, True)]
      [[0.0, -0.75, 1.0], [0.0, 0.0, 1.0]]
    """
    schedule = as_numbers("alpha", alpha, in_interval("(0, 1)"), each="layer")
    cumulative = bounds == "cumulative"
    require(reference is not None or not cumulative, "reference", "be a number with bounds='cumulative'", reference)
    first = 0.0 if reference is None else float(reference)
    form = ("ratio" if cumulative else "difference") if form is None else form
    proxy = (form != "difference") if proxy is None else proxy

    def allowed(losses: Losses) -> Violations:
        layers = losses.shape[-1] - 1
        fits = schedule.ndim == 0 or schedule.size == layers
        require(fits, "alpha", f"have one entry for each of L={layers} layers", schedule.size)
        shares = np.broadcast_to(1.0 - schedule, layers)
        if cumulative:
            before, shares = jnp.full_like(losses[..., 1:], first), np.cumprod(shares)
        else:
            before = jax.lax.stop_gradient(losses[..., :-1]) if proxy else losses[..., :-1]
        descent = jnp.asarray(shares, losses.dtype) * before
        descent = jnp.maximum(descent, floor) if floor > 0.0 else descent
        if reference is None:
            return descent
        return jnp.concatenate([jnp.full_like(losses[..., :1], first), descent], axis=-1)

    return LayerConstraints(allowed, form)


@checked(form=one_of(FORMS))
def level_constraints(levels: float | Sequence[float] | np.ndarray, *, form: str = "ratio") -> LayerConstraints:
    r"""Violations of absolute bounds on layer losses, :math:`f_l / b_l - 1 \le 0`.

    Args:
      levels: b > 0, in units of the losses: a number for layers 1..L, or a sequence of one for layer L alone, of L for
        layers 1..L, or of L + 1 with that of f_0 first; numbers, not traced values.
      form: "difference", "ratio" or "log_ratio".

    Returns:
      ``violations(layer_losses)``, (..., L + 1) to (..., C) for C bounds.

    Raises:
      ValueError: if a level is not positive and finite, or the form is unknown; while tracing, if their number does not
        fit the losses.
      TypeError: if levels are traced.

    Source: constraints (4) of Porras-Valenzuela, Hadou, Ribeiro with constants on their right sides.

    Example:
      >>> import jax.numpy as jnp
      >>> level_constraints([4.0, 2.0, 1.0])(jnp.array([4.0, 3.0, 0.5])).tolist()
      [0.0, 0.5, -0.5]
    """
    numbers = as_numbers("levels", levels, POSITIVE, each="layer")

    def allowed(losses: Losses) -> Violations:
        layers = losses.shape[-1] - 1
        fits = numbers.ndim == 0 or numbers.size in (1, layers, layers + 1)
        require(fits, "levels", f"be 1, {layers} or {layers + 1} numbers, for f_0..f_{layers}", numbers.size)
        count = layers if numbers.ndim == 0 else numbers.size
        return jnp.broadcast_to(jnp.asarray(numbers, losses.dtype), (*losses.shape[:-1], count))

    return LayerConstraints(allowed, form)
