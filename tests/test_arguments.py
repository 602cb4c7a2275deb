"""Every declared range of an argument: values outside of it, and of another kind, are
one line that names the argument and the value."""

import importlib
import inspect
import math
import pkgutil
from typing import get_args

import jax
import pytest

import unroll_jax

NUMBERS = (-2, -1, 0, 1, 2, -1.0, 0.0, 0.25, 1.0, 3.0, math.inf, -math.inf, math.nan)
WORDS = ("other", "")


def functions():
    """All functions of the library that declare ranges, by module and name."""
    found = {}
    for module in pkgutil.walk_packages(unroll_jax.__path__, "unroll_jax."):
        if not module.name.startswith("unroll_jax.train"):
            for value in vars(importlib.import_module(module.name)).values():
                if inspect.isfunction(value) and hasattr(value, "ranges"):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


FUNCTIONS = functions()


# The ranges of all arguments, which the tests below read from the functions.
RANGES = r"""
at least 0: implicit_root.batch_ndim
at least 1: anderson.window attack.num_steps attention.block attention.dim attention.rank certify.num_layers certify.num_points
    chunked_cross_entropy.chunk convex_equilibrium.dim convex_equilibrium.width convex_potential.dim
    convex_potential.width convex_potential_conv.channels convex_potential_conv.width cosine_dictionary.dim
    cosine_dictionary.num_atoms crate.dim crate.head_dim crate.num_heads delta_rule.chunk_size
    descent_constraints.num_layers energy_transformer.head_dim energy_transformer.num_heads
    energy_transformer.num_memories equilibrium.adjoint_max_steps equilibrium.max_steps fast_weights.key_dim
    fast_weights.value_dim feedforward.dim gmres.window hopfield.dim hopfield.num_patterns hyper_set.dim
    hyper_set.head_dim hyper_set.num_heads hyper_set.width implicit_root.adjoint_max_steps jacobian_penalty.num_probes
    level_constraints.num_layers lista.dim lista.num_atoms mesa.chunk_size mesa.max_steps monotone_init.size
    multihead_attention.dim multihead_attention.num_heads multihead_attention.rank neumann.terms opteq.dim
    opteq.input_dim opteq.width opteq_conv.channels opteq_conv.input_channels opteq_conv.width pad_channels.channels
    pool.factor run_loops.most safeguarded.halvings sample_far_start.horizon sample_loops.least sample_loops.most
    sample_segment.most space_to_depth.factor spectral_norm.num_steps transformer_parts.dim unroll.num_layers
    unrolled.num_steps
at least 2: class_losses.num_classes curvature.num_steps energy_transformer.dim gap.num_groups
    jacobian_radius.num_steps layer_norm.dim
finite: _check_interval.lower _check_interval.upper class_losses.at_most nu_pi.proportional_gain
finite and at least 0: attention.ridge certify.tolerance constraint_report.gradient_tolerance
    constraint_report.least_price constraint_report.rtol descent_constraints.floor equilibrium.atol fast_weights.ridge
    growing_penalty.increment growing_penalty.tolerance layer_noise.scale layer_norm.epsilon lista.sparsity
    margin_loss.offset nu_pi.integral_gain pairwise_smoothness.ridge proportional_integral.proportional_gain
    suggest_alpha.slack
finite and at least 1: growing_penalty.factor
in (-1, 1): nu_pi.nu
in (0, 1): equilibrium.adjoint_tol equilibrium.tol implicit_root.adjoint_tol implicit_root.tol
in (0, 1/2]: convex_equilibrium.strength
in (0, 1]: attention.step_size averaged.eta damped.damping hopfield.step_size layer_norm.step_size leaky_relu.slope
    neumann.damping opteq.skip opteq_conv.skip opteq_objective.skip power.exponent
    transformer_parts.attention_step_size
in (0, 2]: convex_potential.step_size convex_potential_conv.step_size
in [0, 1]: gap.at_most growing_penalty.shrinkage in_proximal_region.kappa proximal_constant.kappa rate.at_most
    sample_far_start.share
in [0, inf]: apollonian_ball.ratio descent_constant.f_step_size descent_constant.smoothness_g
odd and positive: convex_equilibrium.kernel_size convex_potential_conv.kernel_size monotone_init.kernel_size
    opteq_conv.kernel_size
one of ('difference', 'ratio', 'log_ratio'): descent_constraints.form level_constraints.form
one of ('error', 'warn', 'accept'): equilibrium.on_failure implicit_root.on_failure
one of ('gershgorin', 'norm'): convex_equilibrium.scaling convex_potential.scaling convex_potential_conv.scaling
one of ('gradient', 'proximal'): delta_rule.form fast_weights.form
one of ('input', 'row'): transformer_parts.anchor
one of ('jacobi', 'softmax'): attention.form
one of ('jacobi', 'softmax', 'plain'): dust.form
one of ('prox', 'gradient'): regularised.form
one of ('published', 'gradient'): hyper_set.form
one of ('published', 'proximal'): crate.form
one of ('simultaneous', 'primal_dual', 'dual_primal', 'extragradient'): primal_dual.order
one of ('stepwise', 'cumulative'): descent_constraints.bounds
one of ('uniform', 'log_normal_poisson'): sample_loops.distribution
one of ('xla', 'pallas'): multihead_attention.kernel
one of ('zero', 'sgd'): nu_pi.start
positive and finite: absolute.strength activation.step_size alternating.f_step_size alternating.g_step_size
    attack.radius averaged.smoothness cauchy.scale decorrelation.strength descent_constant.g_step_size descent_constraints.reference
    dual_ascent.resilience dust.attention_scale energy_transformer.epsilon energy_transformer.step_size
    fast_weights.step_size feedforward.step_size geman_mcclure.scale growing_penalty.maximum half_square.strength
    hopfield.inverse_temperature hyper_set.epsilon hyper_set.step_size implicit_argmin.step_size
    in_proximal_region.step_size inverse_square.epsilon inverse_square.strength kl.at_most lagrangian.resilience
    layer_norm.radius leaky_relu.step_size lista.curvature log.shift margin_loss.temperature mesa.ridge mesa.tol
    monotone_equilibrium.step_size monotone_weight.margin norm.at_most picard_steps.tol power.shift
    proportional_integral.cap proportional_integral.integral_gain regularised.step_size sample_loops.mean
    sigmoid.step_size softplus.step_size spectral_normalise.bound student.degrees suggest_alpha.reference
    tanh.step_size truncated_quadratic.threshold
"""


def test_the_declared_ranges_are_those_listed():
    declared = {}
    for function in FUNCTIONS.values():
        for name, allowed in function.ranges.items():
            arguments = declared.setdefault(allowed.words, [])
            arguments.append(f"{function.__name__}.{name}")
    lines = RANGES.replace("\n    ", " ").strip().splitlines()
    listed = dict(line.split(": ") for line in lines)
    assert {words: sorted(each) for words, each in declared.items()} == {
        words: each.split() for words, each in listed.items()
    }


def message_of(error, function, name, value):
    with pytest.raises(error) as caught:
        function(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} must be "), message
    assert "\n" not in message
    return message


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_value_outside_its_range_is_named(function):
    for name, allowed in function.ranges.items():
        values = NUMBERS if allowed.number else WORDS
        if allowed.integer:
            values = [value for value in values if isinstance(value, int)]
        outside = [value for value in values if not allowed.holds(value)]
        assert outside, name
        for value in outside:
            message = message_of(ValueError, function, name, value)
            assert message.endswith(f", got {value!r}")
            assert allowed.words in message


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_value_of_another_kind_is_named(function):
    for name, allowed in function.ranges.items():
        annotation = inspect.signature(function).parameters[name].annotation
        is_optional = type(None) in get_args(annotation)
        if "Array" in str(annotation):
            continue

        values = ["3", True, [1.0]] if allowed.number else []
        values += [0.5] if allowed.integer else []
        values += [] if is_optional or not allowed.number else [None]
        for value in values:
            message = message_of(TypeError, function, name, value)
            assert message.endswith(f", got {value!r}")

        def call(value, name=name):
            return len(message_of(TypeError, function, name, value))

        jax.eval_shape(call, 1.0)
