"""Ready-made constraints: rates, gaps of rates, losses of classes, norms, KL."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from unroll_jax.arguments import (
    FINITE,
    POSITIVE,
    at_least,
    checked,
    in_interval,
    require,
)
from unroll_jax.arrays import common_dtype
from unroll_jax.constrained.constraint import Constraint
from unroll_jax.constrained.trees import (
    NOT_NEGATIVE,
    as_indices,
    check_function,
    nan_unless,
    widen,
    within,
)
from unroll_jax.numerics import powers_of_two

__all__ = ["class_losses", "gap", "kl", "norm", "rate"]

SHARE = in_interval("[0, 1]")
Select = Callable[[Any], Any]


@checked(at_most=SHARE)
def rate(
    *, at_most: float, of: Select | None = None, where: Select | None = None
) -> Constraint:
    r"""The rate of positive predictions stays below a bound.

    .. math:: P(\hat y = 1) - b \le 0 .

    With ``where`` it is the rate among some samples, for label 0 the false-positive
    rate. Several masks give several rates. Columns have the probability of a positive
    prediction, strict ones count logits above 0.

    Args:
      at_most: b in [0, 1].
      of: ``outputs -> logits (samples,)``. None for outputs that are the logits.
      where: ``batch -> weights (samples,)`` or ``(samples, rates)`` of at least 0, such
        as a mask. None for all.

    Returns:
      A `Constraint`, its value () or (rates,). A ValueError names unequal shapes or a
      known negative weight.

    Source: Goh et al., "Satisfying real-world goals with dataset constraints" (2016).

    Example:
      >>> import jax.numpy as jnp
      >>> false_positives = rate(at_most=0.25, where=lambda labels: labels == 0)
      >>> logits, labels = jnp.array([2.0, -1.0, 3.0]), jnp.array([0, 0, 1])
      >>> [float(part) for part in false_positives.strict(logits, labels)["rate"]]
      [1.0, 2.0]
    """

    def sums(chances: Array, weights: Array | None, batch: Any) -> dict[str, Any]:
        return {"rate": _sums(chances, weights)}

    columns, strict = _soft_and_strict(sums, of, where, several=True)
    return Constraint(columns, lambda means: means["rate"], at_most, strict=strict)


@checked(num_groups=at_least(2), at_most=SHARE)
def gap(
    num_groups: int,
    *,
    at_most: float,
    groups: Select,
    between: bool = False,
    of: Select | None = None,
    where: Select | None = None,
) -> Constraint:
    r"""The rate of positive predictions of each group is near the rate of all samples.

    .. math:: |P(\hat y = 1 \mid g) - P(\hat y = 1)| \le \epsilon , \; g = 1..G ,

    as two inequalities for each group: demographic parity. Two groups may then be up to
    :math:`2 \epsilon` apart. With ``between`` the bound is on the distance of any two
    groups, :math:`|P(\hat y = 1 \mid g) - P(\hat y = 1 \mid h)| \le \epsilon`. On one
    label (``where``) it is half of equalised odds.

    Args:
      num_groups: G, at least 2.
      at_most: epsilon in [0, 1], a difference of rates.
      groups: ``batch -> (samples,)``, integers in 0..G - 1. A known one out of range is
        an error.
      between: bound the distance between groups, not that to the rate of all.
      of, where: as in `rate`. Weights are (samples,).

    Returns:
      A `Constraint`, its value (2, G): rates above the rate of all samples, and below.
      With ``between`` it is (2, G (G - 1) / 2), of the pairs of groups.

    Source: Dwork et al., "Fairness through awareness" (2012); as constraints Agarwal et
    al., "A reductions approach to fair classification" (2018), Example 1; Hardt, Price,
    Srebro, "Equality of opportunity" (2016).

    Example:
      >>> import jax.numpy as jnp
      >>> parity = gap(2, at_most=0.25, groups=lambda groups: groups)
      >>> sums = parity.strict(
      ...     jnp.array([1.0, 1.0, -1.0, 2.0]), jnp.array([0, 0, 1, 1])
      ... )
      >>> [part.tolist() for part in sums["groups"]]
      [[2.0, 1.0], [2.0, 2.0]]
    """
    check_function("groups", groups, "lambda batch: batch['group']")
    first, second = np.triu_indices(num_groups, 1)

    def sums(
        chances: Array, weights: Array | None, batch: Any
    ) -> dict[str, tuple[Array, Array]]:
        return {
            "groups": _class_sums(
                "groups", groups(batch), num_groups, chances, weights
            ),
            "all": _sums(chances, weights),
        }

    def value(means: Mapping[str, Array]) -> Array:
        rates = means["groups"]
        above = rates[first] - rates[second] if between else rates - means["all"]
        return jnp.stack([above, -above])

    columns, strict = _soft_and_strict(sums, of, where)
    return Constraint(columns, value, at_most, strict=strict)


@checked(num_classes=at_least(2), at_most=FINITE)
def class_losses(
    num_classes: int,
    *,
    at_most: float,
    labels: Select,
    of: Select | None = None,
    where: Select | None = None,
) -> Constraint:
    r"""The mean loss of every class stays below a bound: class balance.

    .. math:: E[f \mid y = k] - b \le 0 .

    Args:
      num_classes: K, at least 2. The constraint's value is (K,).
      at_most: b, in units of the loss.
      labels: ``batch -> (samples,)``, integers in 0..K - 1. A known one out of range is
        an error.
      of: ``outputs -> losses (samples,)``. None for outputs that are the losses.
      where: ``batch -> weights (samples,)`` of at least 0, such as a mask. None for all
        samples.

    Source: Sagawa et al., "Distributionally robust neural networks for group shifts"
    (2020), as constraints.

    Example:
      >>> import jax.numpy as jnp
      >>> constraint = class_losses(2, at_most=1.0, labels=lambda labels: labels)
      >>> sums = constraint.columns(jnp.array([1.0, 3.0, 0.5]), jnp.array([0, 0, 1]))
      >>> [part.tolist() for part in sums["classes"]]
      [[4.0, 0.5], [2.0, 1.0]]
    """
    check_function("labels", labels, "lambda batch: batch['label']")

    def columns(outputs: Any, batch: Any) -> dict[str, tuple[Array, Array]]:
        losses = _vector("losses", outputs if of is None else of(outputs))
        weights = _weights(where, batch, losses.shape)
        return {
            "classes": _class_sums(
                "labels", labels(batch), num_classes, losses, weights
            )
        }

    return Constraint(columns, lambda means: means["classes"], at_most)


@checked(at_most=POSITIVE)
def norm(
    *, at_most: float, of: Select | None = None, measure: Select | None = None
) -> Constraint:
    r"""A norm of parameters stays below a bound, :math:`|\theta| - b \le 0`.

    Args:
      at_most: b > 0, in units of the norm.
      of: ``outputs -> params``, any pytree, such as one layer's. None for outputs that
        are the parameters.
      measure: ``params -> norm``, differentiable. None for the Euclidean norm of all of
        them. The product of the weights' spectral norms
        (``certificates.spectral_norm``) bounds the Lipschitz constant of a network.

    Source: Ivanov regularisation, the constrained form of weight decay; Lipschitz
    constants: Gouk et al., "Regularisation of neural networks by enforcing Lipschitz
    continuity" (2021).

    Example:
      >>> import jax.numpy as jnp
      >>> float(
      ...     norm(at_most=2.5).columns({"w": jnp.array([3.0, 4.0])}, None)["norm"][0]
      ... )
      5.0
    """
    if measure is not None:
        check_function("measure", measure, "jnp.linalg.norm")

    def columns(outputs: Any, batch: Any) -> dict[str, tuple[Any, Any]]:
        params = outputs if of is None else of(outputs)
        require(jax.tree.leaves(params), "params", "hold at least one array", params)
        size = euclidean(params) if measure is None else measure(params)
        require(
            np.shape(size) == (),
            "measure",
            "return a number",
            f"shape {np.shape(size)}",
        )
        return {"norm": (size, 1.0)}

    return Constraint(columns, lambda means: means["norm"], at_most)


@checked(at_most=POSITIVE)
def kl(
    *, at_most: float, of: Select | None = None, where: Select | None = None
) -> Constraint:
    r"""The model stays close to a reference model.

    .. math:: E\, KL(p_\theta \| p_{ref}) - b \le 0 .

    Args:
      at_most: b > 0, nats per position.
      of: ``outputs -> (logits, reference_logits)``, (*positions, classes), the second
        constant. None for such outputs.
      where: ``batch -> weights (*positions,)`` of at least 0, such as a mask. None for
        all positions.

    Source: Stiennon et al., "Learning to summarize with human feedback" (2020), with
    the penalty as a constraint.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, reference = (
      ...     jnp.log(jnp.array([[0.5, 0.5]])),
      ...     jnp.log(jnp.array([[0.75, 0.25]])),
      ... )
      >>> round(float(kl(at_most=0.1).columns((logits, reference), None)["kl"][0]), 4)
      0.1438
    """

    def columns(outputs: Any, batch: Any) -> dict[str, tuple[Array, Array]]:
        logits, reference = outputs if of is None else of(outputs)
        logits, reference = (
            widen("logits", logits),
            widen("reference_logits", reference),
        )
        require(
            reference.shape == logits.shape and logits.ndim > 0,
            "reference_logits",
            f"have the shape of logits, {logits.shape}, (*positions, classes)",
            reference.shape,
        )
        weights = _weights(where, batch, logits.shape[:-1])
        # left out before the softmax, whose gradient at NaN would be NaN
        if weights is not None:
            logits, reference = (
                jnp.where((weights != 0.0)[..., None], each, 0.0)
                for each in (logits, reference)
            )
        each = _divergences(logits, reference)
        return {
            "kl": _sums(
                each.reshape(-1), None if weights is None else weights.reshape(-1)
            )
        }

    return Constraint(columns, lambda means: means["kl"], at_most)


def _divergences(logits: Array, reference: Array) -> Array:
    """KL(p_theta | p_ref) of every position, in nats, without gradient in p_ref."""
    logs = jax.nn.log_softmax(logits)
    others = jax.lax.stop_gradient(jax.nn.log_softmax(reference))
    possible = ~(logs == -jnp.inf)  # 0 log 0 is 0, as of classes that are masked
    ratios = jnp.where(possible, logs, 0.0) - jnp.where(possible, others, 0.0)
    return jnp.sum(jnp.exp(logs) * ratios, axis=-1)


def euclidean(params: PyTree) -> Array:
    """The Euclidean norm of parameters, in at least float32, with gradient 0 at 0."""
    parts = []
    for leaf in jax.tree.leaves(params):
        both = (leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else (leaf,)
        parts += [widen("params", part) for part in both]
    dtype = common_dtype(*(part.dtype for part in parts))
    largest = [jnp.max(jnp.abs(part), initial=0.0).astype(dtype) for part in parts]
    # squares of 1e20 are infinite in float32, and those of 1e-25 are 0
    smaller, larger = powers_of_two(functools.reduce(jnp.maximum, largest))
    squares = [jnp.sum((part.astype(dtype) * smaller) ** 2) for part in parts]
    total = functools.reduce(jnp.add, squares)
    # The gradient of a norm is NaN at 0.
    root = jnp.sqrt(jnp.where(total == 0.0, 1.0, total))
    return jnp.where(total == 0.0, 0.0, root * larger)


def _soft_and_strict(
    sums: Callable[..., Any],
    of: Select | None,
    where: Select | None,
    *,
    several: bool = False,
) -> tuple[Any, Any]:
    """Columns of probabilities, and strict columns of exact predictions."""

    def by(predict: Callable[[Array], Array]) -> Callable[[Any, Any], Any]:
        def columns(outputs: Any, batch: Any) -> Any:
            logits = _vector("logits", outputs if of is None else of(outputs))
            weights = _weights(where, batch, logits.shape, several=several)
            # Predictions of values that are left out have no gradient, also where they
            # are NaN.
            return sums(
                predict(logits if weights is None else _keep(logits, weights)),
                weights,
                batch,
            )

        return columns

    def exact(logits: Array) -> Array:
        return jnp.where(
            jnp.isnan(logits), jnp.nan, (logits > 0.0).astype(logits.dtype)
        )

    return by(jax.nn.sigmoid), by(exact)


def _vector(name: str, values: Any) -> Array:
    array = widen(name, values)
    require(array.ndim == 1, name, "have shape (samples,)", array.shape)
    return array


def _weights(
    where: Select | None, batch: Any, shape: tuple[int, ...], *, several: bool = False
) -> Array | None:
    """Weights of samples, (*shape, rates) if ``several``."""
    if where is None:
        return None
    given = jnp.asarray(where(batch))
    weights = widen(
        "where", given.astype(jnp.float32) if given.dtype == bool else given
    )
    fits = weights.shape == shape or (several and weights.shape[:-1] == shape)
    require(fits, "where", f"have shape {shape}", weights.shape)
    return jax.lax.stop_gradient(within("where", weights, NOT_NEGATIVE))


def _keep(values: Array, weights: Array) -> Array:
    """Values with 0 for each of weight 0, of the shape of the weights."""
    return jnp.where(
        weights != 0.0, values if values.ndim == weights.ndim else values[:, None], 0.0
    )


def _sums(values: Array, weights: Array | None) -> tuple[Array, Array]:
    """Weighted sums and counts of samples, without values of weight 0 such as NaN."""
    if weights is None:
        return jnp.sum(values), jnp.asarray(values.size, values.dtype)
    weights = weights.astype(values.dtype)
    return jnp.sum(_keep(values, weights) * weights, axis=0), jnp.sum(weights, axis=0)


def _class_sums(
    name: str, places: Any, count: int, values: Array, weights: Array | None
) -> tuple[Array, Array]:
    """Sums and counts of each class, all NaN if a traced class is out of range."""
    shape = np.shape(places)
    require(shape == values.shape, name, f"have shape {values.shape}", shape)
    weights = jnp.ones_like(values) if weights is None else weights.astype(values.dtype)
    classes, inside = as_indices(name, places, count, weights != 0.0)
    numbers = jnp.arange(count, dtype=classes.dtype)
    members = jnp.where(classes[:, None] == numbers, weights[:, None], 0.0)
    sums, counts = _sums(values, members)
    every = jnp.all(inside)
    return nan_unless(every, sums), nan_unless(every, counts)
