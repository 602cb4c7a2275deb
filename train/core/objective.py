"""The objective of a plan: the Lagrangian of layer losses, its figures and its
gradient, also of a batch in parts."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax import held_out_report, lagrangian, multipliers_of
from unroll_jax.constrained import (
    ConstraintReport,
    batch_violations,
    column_means,
    column_sums,
    violations,
)

from .metrics import json_numbers, ratio_figures, require_finite
from .task import Plan, Row, SampleLosses

# Below any score of a checkpoint that may be reported without a warning.
INFEASIBLE = -1e6
# (params, batch, probe) -> (losses of every sample, other figures of the samples), a
# row a sample
Losses = Callable[[Any, Any, Any], tuple[SampleLosses, Mapping[str, Array]]]
# losses of the whole batch -> (value, extras)
ObjectiveOfLosses = Callable[[SampleLosses], tuple[Array, Any]]
# (value, extras, losses of every sample, other figures), (gradient in the parameters,
# gradient in the probe)
Place = Callable[[Array, int], Array]
ValueAndGradients = tuple[
    tuple[Array, Any, SampleLosses, Mapping[str, Array]], tuple[Any, Any]
]


class Prices(NamedTuple):
    """Figures of one step, before its update. Violations are of the constraints of
    training."""

    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]
    slacks: Float[Array, "constraints"]


def objective(
    plan: Plan, samples: SampleLosses, means: Array, opt_state: Any, step: Array
) -> tuple[Float[Array, ""], dict[str, Any]]:
    """Returns the Lagrangian, or the weighted sum of losses without multipliers; and
    the arguments of the optimiser beyond the gradient."""
    weighted = means[-1]
    if np.any(plan.weights[:-1]) or plan.weights[-1] != 1.0:
        weighted = jnp.vdot(jnp.asarray(plan.weights, means.dtype), means)
    if not plan.constraints:
        return weighted, {}
    outputs = means if plan.of_means else samples
    smooth, strict = batch_violations(plan.constraints, outputs, None)
    extra = {"violations": strict}
    if not plan.enforced:
        return weighted, extra
    multipliers = multipliers_of(opt_state)
    if plan.warmup:
        multipliers = jax.tree.map(
            lambda one: jnp.where(step < plan.warmup, 0.0, one), multipliers
        )
    if not plan.explicit_slacks:
        value = lagrangian(weighted, smooth, multipliers, normalise=plan.normalise)
        return value, extra

    def relaxed(slacks: Any) -> Array:
        return lagrangian(
            weighted,
            smooth,
            multipliers,
            slacks=slacks,
            resilience=plan.resilience,
            normalise=plan.normalise,
        )

    slack = opt_state.slacks
    extra["violations"] = jax.tree.map(jnp.subtract, strict, slack)
    extra["slack_gradient"] = jax.grad(relaxed)(slack)
    return relaxed(slack), extra


def prices(plan: Plan, extra: dict[str, Any], opt_state: Any) -> Prices | None:
    """Returns the figures of the constraints at a step, or None without constraints."""
    if not plan.constraints:
        return None
    multipliers = _in_order(plan, _prices(plan, opt_state))
    slack = slacks(plan, multipliers, opt_state)
    violation = _in_order(plan, extra["violations"])
    if plan.explicit_slacks:
        # of the constraints themselves: the optimiser's are less the slacks
        violation = violation + slack
    return Prices(violation, multipliers, slack)


def describe_objective(
    plan: Plan, step: int, value: Any, means: Any, seen: Prices | None
) -> tuple[Row, dict[str, str]]:
    """Returns losses, violations and multipliers of a step by layer and by name, and
    words for the progress bar."""
    row: Row = {"loss": float(means[-1])}
    words = {"loss": f"{means[-1]:.3f}"}
    if seen is None:
        return row, words
    require_finite(step, seen.multipliers, "multiplier", each="constraint")
    require_finite(step, value, "Lagrangian")
    row |= {
        "lagrangian": float(value),
        "layer_losses": means.tolist(),
        "violations": json_numbers(seen.violations, length=means.size),
        "multipliers": json_numbers(seen.multipliers, length=means.size),
        **_named(plan, "violation", seen.violations),
        **_named(plan, "multiplier", seen.multipliers),
    }
    if plan.resilience is not None:
        row |= _named(plan, "slack", seen.slacks)
    return row, words | {"worst_violation": f"{seen.violations.max():+.3f}"}


def multipliers_in_order(plan: Plan, opt_state: Any) -> np.ndarray | None:
    """Returns the multipliers in the order of the constraints, or None without any."""
    if not plan.constraints:
        return None
    return _in_order(plan, _prices(plan, opt_state), np.stack)


def judge(plan: Plan, samples: np.ndarray, opt_state: Any) -> tuple[Row, float]:
    """Returns the row of a validation and the score of its checkpoint.

    Feasible checkpoints come first, then the least loss. Infeasible ones go by their
    worst excess over a bound where constraints are hard. Under resilience, where bounds
    may be exceeded at a cost, they go by the loss with that cost.
    """
    losses = samples.mean(axis=0)
    if not plan.constraints:
        return {"loss": float(losses[-1])}, -float(losses[-1])
    report = held_out(plan, samples, opt_state)
    excess = max(group.worst for group in report.groups)
    stated = _in_form(plan, report)
    minimised = float(losses[-1] if plan.judged is None else plan.judged @ losses)
    row = {
        "layer_losses": losses.tolist(),
        "violations": json_numbers(stated, length=losses.size),
        "worst_excess": excess,
        "feasible": report.feasible,
        "minimised": minimised,
        **_named(plan, "violation", stated),
    }
    cost = excess
    if plan.resilience is not None:
        # beta/2 |c|^2 is the least that relaxing these can cost
        relaxed = 0.5 * plan.resilience * np.sum(np.maximum(stated, 0.0) ** 2)
        cost = row["relaxed_loss"] = float(minimised + relaxed)
    infeasible = plan.enforced and not report.feasible
    return row, INFEASIBLE - cost if infeasible else -minimised


def describe_layers(plan: Plan, samples: np.ndarray, opt_state: Any) -> Row:
    """Returns losses, bounds, violations, multipliers and slacks by layer on held-out
    data, and how samples descend, empty without constraints.

    Bounds and violations are as stated. Complementary slackness is of the constraints
    that multipliers enforced. Layer 0 has null without a reference.
    """
    if not plan.constraints:
        return {}
    means = samples.mean(axis=0)
    report = held_out(plan, samples, opt_state)
    multipliers = _in_order(plan, _prices(plan, opt_state), np.stack)
    outputs = means if plan.of_means else samples
    sums = column_sums(plan.constraints, outputs, None)
    excess = violations(plan.constraints, column_means(sums))
    enforced = _in_order(plan, excess, np.stack)
    # explicit ones restart at the end of an epoch, when runs are validated
    slack = slacks_at_rest(plan, multipliers)
    figures = {
        "layer_losses": means,
        "bounds": _bounds(plan, samples),
        "violations": _in_form(plan, report),
        "multipliers": multipliers,
        "slacks": slack,
        "complementary_slackness": multipliers * (enforced - slack),
    }
    by_layer = {
        name: json_numbers(values, length=means.size)
        for name, values in figures.items()
    }
    return {
        "tolerance": plan.tolerance,
        "form": plan.form,
        **by_layer,
        **ratio_figures(samples),
        "feasible": report.feasible,
        "constraint_report": str(report).splitlines(),
    }


def violated(evaluation: Row) -> str:
    """Returns the constraints that an evaluation exceeds, in words."""
    first, _, _ = evaluation.get("constraint_report", [""])[-1].partition(". ")
    return first.lower().replace("f_0 by", "f_0 (the loss of the input) by")


def held_out(plan: Plan, samples: np.ndarray, opt_state: Any) -> ConstraintReport:
    """Returns the library's report on the constraints as stated, with prices of the
    losses."""
    outputs = samples.mean(axis=0) if plan.of_means else samples
    sums = column_sums(plan.stated, outputs, None)
    found = _prices(plan, opt_state)
    if plan.form == "difference":
        # multipliers of differences are per unit of the loss, these of a share
        bounds = zip(plan.stated, _bounds(plan, samples), strict=True)
        found = {name: found[name] * bound for name, bound in bounds}
    return held_out_report(plan.stated, sums, found, tolerance=plan.tolerance)


def slacks(plan: Plan, multipliers: Any, opt_state: Any) -> Any:
    """Returns explicit slacks, or those at which resilient multipliers rest."""
    if plan.explicit_slacks:
        return _in_order(plan, opt_state.slacks)
    return slacks_at_rest(plan, multipliers)


def slacks_at_rest(plan: Plan, multipliers: Any) -> Any:
    """Returns the slacks at which resilient multipliers rest, 0 of hard constraints."""
    if plan.resilience is None:
        return 0.0 * multipliers
    return multipliers / plan.resilience


def _prices(plan: Plan, opt_state: Any) -> dict[str, Array]:
    if plan.enforced:
        return multipliers_of(opt_state)
    return dict.fromkeys(plan.constraints, jnp.zeros(()))


def _bounds(plan: Plan, samples: np.ndarray) -> np.ndarray:
    """Returns the stated bounds of mean losses, in their units."""
    means = samples.mean(axis=0)
    sums = column_sums(plan.stated_of_means, means, None)
    free = dict.fromkeys(plan.stated_of_means, 0.0)
    groups = held_out_report(plan.stated_of_means, sums, free).groups
    return np.array([group.bound for group in groups])


def _in_form(plan: Plan, report: ConstraintReport) -> np.ndarray:
    """Returns the violations of a report in the form of the plan."""
    shares = np.array([group.worst for group in report.groups])
    if plan.form == "difference":
        return shares * [group.bound for group in report.groups]
    if plan.form.startswith("log_ratio"):
        return np.log1p(shares)
    return shares


def _in_order(plan: Plan, by_name: dict[str, Array], stack: Any = jnp.stack) -> Any:
    # JAX sorts names: layer 10 comes before layer 2
    return stack([by_name[name] for name in plan.constraints])


def _named(plan: Plan, figure: str, values: Any) -> dict[str, float | None]:
    names = [f"{figure}/{name}" for name in plan.constraints]
    return dict(zip(names, json_numbers(values), strict=True))


def loss_gradient(
    losses: Losses,
    objective: ObjectiveOfLosses,
    params: Any,
    batch: Any,
    probe: Callable[[int], Any],
    *,
    parts: int = 1,
    affine: bool = False,
    place: Place = lambda rows, axis: rows,
) -> ValueAndGradients:
    r"""Returns an objective of losses with extras, the samples' losses and figures, and
    gradients.

    Exact in parts for any objective, also one that is nonlinear over the batch, such as
    a ratio of means:

    .. math::
      \nabla_\theta J(F(\theta))
      = \sum_i \frac{\partial J}{\partial F_i} \nabla_\theta F_i(\theta) .

    A forward pass over all parts gives the losses of the whole batch and so the weights
    dJ/dF. Then each part has its backward pass, and the weighted gradients are summed.
    The weights of an affine objective do not depend on the losses, so it skips the
    forward pass.

    Args:
      losses: each row a function of its row of the batch only.
      objective: ``losses of the whole batch -> (scalar, extras)``.
      batch: arrays with a row a sample. Noise must be drawn already: parts draw
        nothing.
      probe: zeros for so many rows. The gradients of several parts in it are stacked.
      parts: number of parts of the batch; must divide its rows. A mesh must divide rows
        / parts.
      affine: True if the objective is affine in the losses.
      place: ``(array, axis) -> array`` constrains the sharding of rows on an axis.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    probed = probe(rows // parts)
    if parts == 1:

        def of_batch(params: Any, probed: Any) -> Any:
            samples, figures = losses(params, batch, probed)
            value, extras = objective(samples)
            return value, (extras, samples, figures)

        gradients_of = jax.value_and_grad(of_batch, (0, 1), has_aux=True)
        (value, seen), gradients = gradients_of(params, probed)
        return (value, *seen), gradients

    divided = in_parts(batch, parts, place)

    def only(part: Any) -> Any:
        return losses(params, part, probed)[0]

    if affine:
        shape = jax.eval_shape(only, jax.tree.map(lambda part: part[0], divided))
        so_far = jnp.zeros((rows, *shape.shape[1:]), shape.dtype)
    else:
        so_far = whole(jax.lax.map(only, divided))
    weights, _ = jax.grad(objective, has_aux=True)(so_far)
    gradient, (samples, figures, in_probe) = _added_up(
        losses, params, probed, (divided, in_parts(weights, parts, place))
    )
    samples, figures = whole(samples), whole(figures)
    return (*objective(samples), samples, figures), (gradient, in_probe)


def in_parts(batch: Any, parts: int, place: Place = lambda rows, axis: rows) -> Any:
    """Returns a batch as (parts, rows / parts, ...): part i has rows i, i + parts,
    ...; no row changes its device."""

    def divide(rows: Any) -> Array:
        return place(
            jnp.swapaxes(jnp.reshape(rows, (-1, parts, *rows.shape[1:])), 0, 1), 1
        )

    return jax.tree.map(divide, batch)


def whole(divided: Any) -> Any:
    """Inverts `in_parts`."""
    return jax.tree.map(
        lambda part: jnp.reshape(jnp.swapaxes(part, 0, 1), (-1, *part.shape[2:])),
        divided,
    )


def _added_up(
    losses: Losses, params: Any, probed: Any, parts: tuple[Any, Array]
) -> tuple[Any, tuple[Any, Any, Any]]:
    """Returns the weighted gradient, summed over parts; and the losses, gradients in
    the probe and figures of each."""

    def add(
        gradient: Any, part: tuple[Any, Array]
    ) -> tuple[Any, tuple[Array, Mapping[str, Array], Any]]:
        def part_losses(params: Any, probed: Any) -> Any:
            return losses(params, part[0], probed)

        samples, pull, figures = jax.vjp(part_losses, params, probed, has_aux=True)
        part_gradient, in_probe = pull(part[1])
        return jax.tree.map(jnp.add, gradient, part_gradient), (
            samples,
            figures,
            in_probe,
        )

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
