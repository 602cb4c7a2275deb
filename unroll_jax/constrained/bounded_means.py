"""Ready-made constraints on means over samples, exact for a batch that is computed in parts or over devices."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.constrained.budgets import norm_bound
from unroll_jax.constrained.report import constraint_report

__all__ = [
    "BoundedMeans",
    "bounded_class_losses",
    "bounded_norm",
    "bounded_rows",
    "bounded_violations",
    "limits_report",
    "limits_violations",
    "with_columns",
]


class BoundedMeans(NamedTuple):
    r"""Constraints :math:`v(m) \le b`, where m are means over samples of differentiable columns.

    A batch in parts, or over devices, needs a gradient for each sample's row of columns and nothing else. A function of
    the parameters alone has equal rows.

    Attributes:
      names: of the constraints.
      unit: of the values and of the bound; "" for none.
      bound: b, the same for all; 0 for violations.
      columns: ``(params, batch, losses) -> (samples, width)``, losses (samples, layers).
      width: number of the columns.
      values: ``means (width,) -> (constraints,)``.
      affine: True if the values are affine in the means.
    """

    names: tuple[str, ...]
    unit: str
    bound: float
    columns: Callable[[Any, Any, Array], Float[Array, "samples width"]]
    width: int = 1
    values: Callable[[Array], Float[Array, "constraints"]] = jnp.asarray
    affine: bool = True

    @property
    def scale(self) -> float:
        """Size of a violation of 1: the bound, or the unit of violations."""
        return self.bound or 1.0

    def violations(self, means: Float[Array, "width"]) -> Float[Array, "constraints"]:
        """Violations as shares of the bound, so that one rate of the multipliers fits all units."""
        return (self.values(means) - self.bound) / self.scale


def bounded_norm(
    name: str, unit: str, *, at_most: float, norm: Any = None, of: Callable[[Any], Any] = lambda params: params
) -> BoundedMeans:
    """A norm of parameters, as `norm_bound` takes it; ``of`` selects those that count.

    Example:
      >>> import jax.numpy as jnp
      >>> limit = bounded_norm("norm", "", at_most=2.5)
      >>> columns = limit.columns({"w": jnp.array([3.0, 4.0])}, None, jnp.zeros((2, 1)))
      >>> limit.violations(jnp.mean(columns, axis=0)).tolist()
      [1.0]
    """
    share = norm_bound(at_most=1.0, norm=norm)  # less 1

    def columns(params: Any, batch: Any, losses: Array) -> Float[Array, "samples 1"]:
        del batch
        return jnp.broadcast_to(share(of(params)) + 1.0, (len(losses), 1))

    return BoundedMeans((name,), unit, at_most, columns)


def bounded_class_losses(
    name: str, unit: str, *, at_most: float, labels: Callable[[Any], Any], class_names: Sequence[str]
) -> BoundedMeans:
    """The mean loss of each class at the last layer, as in `worst_class_loss`; a class without samples is at its bound.

    Example:
      >>> import jax.numpy as jnp
      >>> limit = bounded_class_losses("loss", "nats", at_most=1.0, labels=lambda batch: batch, class_names=("a", "b"))
      >>> columns = limit.columns(None, jnp.array([0, 0, 1]), jnp.array([[1.0], [3.0], [0.5]]))
      >>> limit.names, limit.violations(jnp.mean(columns, axis=0)).tolist()
      (('loss/a', 'loss/b'), [1.0, -0.5])
    """
    count = len(class_names)

    def columns(params: Any, batch: Any, losses: Array) -> Float[Array, "samples width"]:
        del params
        members = jax.nn.one_hot(labels(batch), count, dtype=losses.dtype)
        return jnp.concatenate([members * losses[:, -1:], members], axis=1)

    def values(means: Float[Array, "width"]) -> Float[Array, "classes"]:
        sums, shares = means[:count], means[count:]
        return jnp.where(shares > 0.0, sums / jnp.where(shares > 0.0, shares, 1.0), at_most)

    return BoundedMeans(tuple(f"{name}/{one}" for one in class_names), unit, at_most, columns, 2 * count, values, False)


def bounded_rows(name: str, unit: str, *, at_most: float, rows: Callable[[Any, Any], Array]) -> BoundedMeans:
    """The mean of a figure of every sample, ``rows(params, batch)`` (samples,), such as a divergence.

    Example:
      >>> import jax.numpy as jnp
      >>> limit = bounded_rows("size", "", at_most=1.0, rows=lambda params, batch: params * batch)
      >>> limit.columns(2.0, jnp.array([1.0, 3.0]), None).tolist()
      [[2.0], [6.0]]
    """
    return BoundedMeans((name,), unit, at_most, lambda params, batch, losses: rows(params, batch)[:, None])


def bounded_violations(function: Callable[..., Any], init: Any, losses: Any, batch: Any) -> BoundedMeans:
    """Violations of any function of ``(params, batch)`` or ``(params, batch, losses)``, a dict of numbers or arrays.

    Over parts of a batch, their mean counts. Names and shapes come from ``losses(init(key), batch)`` on a batch of
    shapes; nothing is computed.

    Raises:
      TypeError: if the function does not return a dict of floating numbers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def excess(w, batch):
      ...     return {"w": w - 1.0}
      >>> limit = bounded_violations(excess, lambda key: jnp.ones(2), lambda w, batch: w[:, None], None)
      >>> limit.names, limit.columns(jnp.array([3.0, 1.0]), None, jnp.zeros((1, 1))).tolist()
      (('w/0', 'w/1'), [[2.0, 0.0]])
    """
    count = len(inspect.signature(function).parameters)

    def of(params: Any, batch: Any, losses: Any) -> Any:
        return function(*(params, batch, losses)[:count])

    def first(batch: Any) -> Any:
        params = init(jax.random.key(0))
        return of(params, batch, losses(params, batch))

    shapes, names = jax.eval_shape(first, batch), list[str]()
    floating = all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(shapes))
    if not (isinstance(shapes, dict) and shapes and floating):
        raise TypeError(f'constraints must return violations by name, as {{"norm": size - 1.0}}, got {shapes}')
    for path, leaf in jax.tree.leaves_with_path(shapes):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        names += [name] if leaf.size == 1 else [f"{name}/{place}" for place in range(leaf.size)]

    def columns(params: Any, batch: Any, losses: Array) -> Float[Array, "samples constraints"]:
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(of(params, batch, losses))])
        return jnp.broadcast_to(flat, (len(losses), len(names)))

    return BoundedMeans(tuple(names), "", 0.0, columns, len(names))


def with_columns(limits: Sequence[BoundedMeans], params: Any, batch: Any, losses: Array, counts: Any) -> Array:
    """Losses (samples, layers) with the columns of constraints behind them; ``counts`` weigh samples, None: alike."""
    weights = jnp.ones(()) if counts is None else counts[:, None]
    columns = (weights * limit.columns(params, batch, losses) for limit in limits)
    return jnp.concatenate([losses, *(one.astype(losses.dtype) for one in columns)], axis=1)


def limits_violations(limits: Sequence[BoundedMeans], means: Array) -> Float[Array, "constraints"]:
    """The violations of several constraints, from the means of all their columns."""
    parts = [limit.violations(part) for limit, part in _parts(limits, means)]
    return jnp.concatenate(parts) if parts else jnp.zeros(0, means.dtype)


def limits_report(limits: Sequence[BoundedMeans], means: Any, multipliers: Any, *, tolerance: float) -> dict[str, Any]:
    """Value, bound, unit, violation (a share of the bound), multiplier, price (of a unit) and status of each constraint
    by name, and whether all are met.

    Example:
      >>> import jax.numpy as jnp
      >>> limit = bounded_norm("norm", "", at_most=2.0)
      >>> report = limits_report([limit], jnp.array([1.0]), jnp.array([0.0]), tolerance=0.05)
      >>> report["limits"]["norm"]["status"], report["feasible"]
      ('idle', True)
    """
    violations, rows, shares, units = limits_violations(limits, jnp.asarray(means)), {}, {}, {}
    places = [(limit, name) for limit in limits for name in limit.names]
    for (limit, name), violation, price in zip(places, np.asarray(violations), np.asarray(multipliers), strict=True):
        shares[name], units[name] = float(violation), "of its bound" if limit.bound else ""
        known = {"value": limit.bound + limit.scale * shares[name], "bound": limit.bound, "unit": limit.unit}
        figures = {"violation": shares[name], "multiplier": float(price), "price": float(price) / limit.scale}
        rows[name] = known | figures
    prices = {name: row["multiplier"] for name, row in rows.items()}
    report = constraint_report(shares, prices, tolerance=tolerance, units=units)
    for group in report.groups:
        rows[group.name]["status"] = group.status
    return {"limits": rows, "feasible": report.feasible}


def _parts(limits: Sequence[BoundedMeans], means: Any) -> Iterator[tuple[BoundedMeans, Any]]:
    """Each constraint with its part of the means."""
    ends = itertools.accumulate((limit.width for limit in limits), initial=0)
    for limit, (start, end) in zip(limits, itertools.pairwise(ends), strict=True):
        yield limit, means[start:end]
