"""Bounds of layers in every form, their report on held-out data, suggestions and
warnings, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.constrained.calls import report_of
from tests.marks import in_float64
from tests.reference import compiled, jax_array
from unroll_jax.constrained import (
    batch_violations,
    column_means,
    column_sums,
    descent_warnings,
    level_constraints,
    suggest_alpha,
    violations,
)

FORMS = ("difference", "ratio", "log_ratio")
LOSSES = np.random.default_rng(0).uniform(0.5, 6.0, size=(2, 3, 4))
SAMPLES = np.random.default_rng(0).uniform(0.5, 1.5, size=(40, 4)) * np.array(
    [4.0, 3.2, 3.0, 1.0]
)
MULTIPLIERS = np.array([0.1, 0.0, 1.5, 0.4])
ALPHA = np.array([0.1, 0.2, 0.3])
REFERENCE = 5.0
FLOOR = 3.0
KEPT = 1.0 - ALPHA
MARGIN = np.array([0.2, 0.05, 0.0])
COMPARED = {
    "difference": lambda f, b: f - b,
    "ratio": lambda f, b: f / b - 1,
    "log_ratio": lambda f, b: np.log(f / b),
}
NAMES = ["f_0", "layer 1", "layer 2", "layer 3"]


def bounds_of(losses, floor=0.0):
    first = np.full_like(losses[..., :1], REFERENCE)
    return np.concatenate([first, np.maximum(KEPT * losses[..., :-1], floor)], axis=-1)


descent = functools.partial(uj.descent_constraints, ALPHA)
floored = functools.partial(descent, reference=REFERENCE, floor=FLOOR)


def levels(bounds):
    return functools.partial(level_constraints, bounds)


# Constraints, and bounds of the last losses.
STATED = {
    "stepwise": (functools.partial(descent, reference=REFERENCE), bounds_of),
    "no reference": (descent, lambda losses: bounds_of(losses)[..., 1:]),
    "floor": (floored, lambda losses: bounds_of(losses, FLOOR)),
    "margin": (
        functools.partial(floored, margin=MARGIN),
        lambda losses: bounds_of(losses, FLOOR) * np.append(1.0, 1.0 - MARGIN),
    ),
    "cumulative": (
        functools.partial(floored, bounds="cumulative"),
        lambda losses: np.maximum(REFERENCE * np.cumprod([1.0, *KEPT]), FLOOR),
    ),
    "levels": (levels([4.0, 3.0, 2.0, 1.0]), lambda losses: [4.0, 3.0, 2.0, 1.0]),
    "levels without f_0": (levels([3.0, 2.0, 1.0]), lambda losses: [3.0, 2.0, 1.0]),
    "level of the last": (levels([2.0]), lambda losses: [2.0]),
    "level": (levels(2.0), lambda losses: [2.0, 2.0, 2.0]),
}


@in_float64
def test_violations_are_those_of_numpy():
    """Every form of every bound as a function of the losses of two batch axes, and one
    form of each as constraints by name, on samples and on their means."""

    def results(losses, samples):
        seen = {}
        for place, (name, (make, _)) in enumerate(STATED.items()):
            for form in FORMS:
                seen[name, form] = [make(form=form)(losses)]
            named = FORMS[place % 3]
            constraints = make(form=named, num_layers=3)
            sums = column_sums(constraints, samples, None)
            seen[name, named] += [
                violations(constraints, column_means(sums)),
                batch_violations(constraints, jnp.mean(samples, axis=0), None)[0],
            ]
        return seen

    seen = compiled(results)(LOSSES, SAMPLES)
    for (name, form), (of_losses, *by_name) in seen.items():
        for losses, ours in (
            (LOSSES, of_losses),
            *((SAMPLES.mean(0), x) for x in by_name),
        ):
            bounds = np.array(STATED[name][1](losses))
            count = bounds.shape[-1]
            expected = COMPARED[form](losses[..., 4 - count :], bounds)
            if isinstance(ours, dict):
                ours = [ours[key] for key in NAMES[4 - count :]]
            assert_allclose(
                ours, expected, rtol=1e-12, atol=1e-14, err_msg=f"{name}, {form}"
            )
    for name in ("floor", "cumulative"):
        bounds = STATED[name][1](LOSSES)
        assert np.any(bounds == FLOOR)
        assert np.any((bounds != FLOOR) & (bounds != REFERENCE))


@in_float64
def test_a_ratio_of_samples_is_a_mean_of_parts():
    """A column: sums over two parts of the batch are those of the whole."""

    @compiled
    def run(*parts):
        means = {}
        for form in FORMS:
            constraints = descent(
                num_layers=3, reference=REFERENCE, form=form, of_samples=True
            )
            sums = [column_sums(constraints, part, None) for part in parts]
            total = jax.tree.map(jnp.add, *sums)
            means[form] = violations(constraints, column_means(total))
        return means

    for form, actual in run(SAMPLES[:15], SAMPLES[15:]).items():
        expected = COMPARED[form](SAMPLES, bounds_of(SAMPLES)).mean(axis=0)
        columns = [actual[name] for name in NAMES]
        assert_allclose(columns, expected, rtol=1e-12, err_msg=form)


@in_float64
def test_gradients_equal_finite_differences_except_of_proxies():
    losses = LOSSES[0, 0]
    h = 1e-6
    near = losses + h * np.stack([np.eye(4), -np.eye(4)])

    @compiled
    def run(losses, near):
        results = {}
        for form in FORMS:
            exact, proxy = (
                descent(reference=REFERENCE, form=form, proxy=each)
                for each in (False, True)
            )
            slopes = [jax.jacobian(each)(losses) for each in (exact, proxy)]
            results[form] = *slopes, exact(near)
        return results

    for form, (slope, of_proxy, (above, below)) in run(losses, near).items():
        expected = (above - below).T / (2 * h)
        assert_allclose(slope, expected, rtol=1e-6, atol=1e-8, err_msg=form)
        diagonal = np.diag(np.diag(expected))
        assert_allclose(of_proxy, diagonal, rtol=1e-6, atol=1e-8, err_msg=form)


def test_losses_of_zero_give_numbers_and_broken_ones_nan():
    cases = [(form, each) for form in FORMS[1:] for each in (False, True)]
    losses = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1e-10, 10.0], [1e-9, 1e4]]
    losses += [[0.0, -1.0], [0.0, np.nan], [0.0, np.inf]]

    @compiled
    def run(losses):
        results = {}
        for form, of_samples in cases:
            options = {"form": form, "of_samples": of_samples}
            violation = lambda f, o=options: uj.descent_constraints(0.5, **o)(f)[0]
            named = uj.descent_constraints(0.5, num_layers=1, **options)
            by_name = lambda f, c=named: batch_violations(c, f, None)[0]["layer 1"]
            results[form, of_samples] = (
                *jax.vmap(jax.value_and_grad(violation))(losses),
                jax.vmap(by_name)(losses),
            )
        return results

    for case, (values, slopes, by_name) in run(np.float32(losses)).items():
        assert np.all(np.isfinite(values[:5])), case
        assert np.all(np.isfinite(slopes[:5])), case
        assert values[0] < 0.0 < values[4], case
        # a loss of 0 leaves no share to remove
        assert_array_equal(values[1:4], 0.0)
        assert np.all(np.isnan(values[5:])), case
        assert np.all(np.isnan(by_name[5:])), case


def test_only_differences_reward_a_larger_loss():
    """With multipliers of any size no loss has a negative weight. The paper's
    difference has, and proxy=False."""
    sound = [{"form": form} for form in FORMS[1:]]
    sound += [{"reference": 2.0, "bounds": "cumulative"}]
    others = [{}, *({"form": form, "proxy": False} for form in FORMS[1:])]
    multipliers = np.float32([0.0, 5.0, 9.0, 2.0])

    @compiled
    def least_weights(losses):
        constraints = [uj.descent_constraints(0.3, **each) for each in sound + others]
        pulls = [jax.vjp(each, losses) for each in constraints]
        return [
            jnp.min(pull(multipliers[-value.size :])[0].at[-1].add(1.0))
            for value, pull in pulls
        ]

    least = least_weights(np.float32([4.0, 3.0, 2.5, 1.0]))
    for options, weight in zip(sound + others, least, strict=True):
        assert (weight >= 0.0) == (options in sound), options


@in_float64
@pytest.mark.parametrize("form", FORMS)
def test_a_report_is_in_units_of_the_losses(form):
    constraints = descent(num_layers=3, reference=REFERENCE, form=form)
    options = {"tolerance": 0.05, "units": "nats"}
    report = report_of(constraints, SAMPLES, MULTIPLIERS, **options)
    means = SAMPLES.mean(axis=0)
    bounds = bounds_of(means)
    scales = bounds if form == "ratio" else np.ones(4)
    if form == "log_ratio":
        means = np.log(means)
        bounds = np.log(bounds)
    missed = (means - bounds) / scales
    columns = {
        "value": means,
        "bound": bounds,
        "worst": missed,
        "tolerance": 0.05 * scales,
        "price": MULTIPLIERS / scales,
        "slackness": np.abs(MULTIPLIERS * missed),
    }
    for name, expected in columns.items():
        actual = [getattr(group, name) for group in report.groups]
        assert_allclose(actual, expected, rtol=1e-12, atol=1e-14, err_msg=name)
    assert [group.name for group in report.groups] == NAMES
    titles = ["constraint", "kind", "status", "value", "bound"]
    assert str(report).split()[:5] == titles
    statuses = [group.status == "violated" for group in report.groups]
    assert statuses == (missed > 0.05).tolist()
    assert report.feasible == np.all(missed <= 0.05)
    layer = int(np.argmax(missed))
    unscaled = form == "difference"
    words = f"{missed[layer]:.3g} nats" if unscaled else f"{missed[layer]:.2%}"
    assert f"{NAMES[layer]} by {words}" in report.verdict


@pytest.mark.parametrize(
    ("losses", "options", "status"),
    [
        ([100.0, 52.0], {}, "met"),  # 4% above a bound of 50
        ([100.0, 52.0], {"tolerance": 0.0}, "violated"),
        ([0.1, 0.0625], {}, "violated"),  # 25% above one of 0.05
        ([4.0, 2.0], {"tolerance": 0.0}, "met"),
        ([4.0, 2.125], {"tolerance": 0.0625}, "met"),
        ([4.0, 1.4], {}, "met, wound up"),  # 30%
        ([4.0, np.nan], {}, "not finite"),
        ([np.nan, 2.0], {}, "not finite"),
        ([4.0, 2.0], {"gradient": np.ones(2)}, "met, not stationary"),
    ],
)
def test_the_tolerance_is_a_share_of_the_bound(losses, options, status):
    constraints = uj.descent_constraints(0.5, num_layers=1, form="ratio")
    options = {"tolerance": 0.05} | options
    report = report_of(constraints, jax_array([losses]), 1.0, **options)
    assert report.status == status
    assert report.feasible == status.startswith("met")


def test_the_report_has_layers_in_their_order_beyond_the_ninth():
    constraints = level_constraints(1.0, num_layers=12)
    groups = report_of(constraints, np.float32(range(13)), range(12)).groups
    columns = zip(constraints, range(1, 13), range(12), strict=True)
    assert [(group.name, group.value, group.price) for group in groups] == [*columns]


def test_a_selection_of_constraints_reads_its_own_losses_only():
    named = uj.descent_constraints(0.25, num_layers=3, form="ratio")
    chosen = {"layer 1": named["layer 1"]}
    losses = np.float32([4.0, 2.0, -1.0, 1.0])
    both = compiled(
        lambda *given: [batch_violations(chosen, f, None)[0]["layer 1"] for f in given]
    )
    assert_allclose(both(losses[:2], losses), -1.0 / 3.0, rtol=1e-6)


@pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="XLA of jaxlib 0.10 drops barriers early"
)
def test_a_compiled_step_grows_in_proportion_to_the_layers():
    """XLA once copied the operations of all layers to every kernel: 4,788 here."""
    depth = 24
    constraints = uj.descent_constraints(0.1, num_layers=depth, reference=1.0)
    dual = uj.dual_ascent(optax.sgd(0.1))
    losses = np.ones((2, depth + 1), np.float32)
    state = dual.init(dict.fromkeys(constraints, jnp.zeros(())))

    def step(losses, state):
        def value(losses):
            smooth, strict = batch_violations(constraints, losses, None)
            value = uj.lagrangian(jnp.mean(losses), smooth, state.multipliers)
            return value, strict

        slope, strict = jax.grad(value, has_aux=True)(losses)
        return slope, dual.update(state, strict)

    program = jax.jit(step).lower(losses, state).compile().as_text()
    assert program.count(" = ") <= 75 * depth


def test_a_value_over_bound_zero_is_unknown_in_reports():
    """The scale is infinite there, so the violation does not give the value."""
    constraints = uj.descent_constraints(0.5, num_layers=1, form="ratio")
    (group,) = report_of(constraints, jax_array([[0.0, 0.5]])).groups
    assert np.isnan(group.value)
    assert (group.status, group.worst, group.bound) == ("idle", 0.0, 0.0)
    assert group.tolerance == np.inf


@pytest.mark.parametrize("scale", [1, 1.0])
def test_an_unscaled_violation_has_the_unit_of_its_value(scale):
    mean = uj.constrained.Constraint(
        lambda x, batch: {"x": (jnp.sum(x), x.size)}, lambda m: m["x"], 2.0, scale=scale
    )
    report = report_of({"x": mean}, jax_array([3.0, 4.0]), units="nats")
    assert report.verdict == "Violated: x by 1.5 nats."


@pytest.mark.parametrize("slack", [0.0, 0.2])
@pytest.mark.parametrize("first", [None, 2.3])
def test_the_suggested_alpha_ends_at_the_plain_loss(first, slack):
    losses = jax_array([3.0, 2.0, 1.0, 0.25])
    alpha = suggest_alpha(losses, reference=first, slack=slack)
    constraints = uj.descent_constraints(
        alpha, num_layers=3, reference=first or 3.0, bounds="cumulative"
    )
    assert constraints["layer 3"].bound == pytest.approx(0.25 * (1.0 + slack))


def test_healthy_runs_have_no_warnings_and_each_sign_has_one():
    healthy = {
        "layer_losses": [2.2, 1.6, 1.1, 0.5],
        # the last bounds the objective itself
        "multipliers": [0.0, 0.5, 0.0, 9.0],
        "bounds": [2.3, 1.61, 1.127, 0.7889],
        "start_losses": [2.5, 2.4, 2.4, 2.4],
        "plain_losses": [2.6, 1.9, 1.2, 0.5],
    }
    short = {"plain_losses": [2.6, 1.9, 1.2, 0.9]}
    assert descent_warnings(**healthy) == descent_warnings(**healthy | short) == []
    for words, changed in (
        (
            "Multipliers of layers before the last end at 3 in the mean",
            {"multipliers": [9.0, 0.0, 0.0, 0.0]},
        ),
        ("f_0 rose from 2.6 to 61", {"layer_losses": [61.0, 1.6, 1.1, 0.5]}),
        (
            "The bound 0.789 of layer 3 is not met",
            short | {"layer_losses": [2.2, 1.6, 1.1, 0.8]},
        ),
    ):
        (line,) = descent_warnings(**healthy | changed)
        assert line.startswith(words)
