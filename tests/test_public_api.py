"""The public names, listed: none comes or goes by accident."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import unroll_jax

# The public names of each module. Promises count from 0.4.0: until then names may come
# and go here.
NAMES = {
    "unroll_jax": (
        """
        ADJOINTS DESCENTS PROXIMALS RHOS SOLVERS Anchor Descent DualAscent DualState Entry EquilibriumInfo OptEqParams
        Proximal Rho Sides Trace alternating anderson attention causal_attention certificates
        certify clip_spectrum constrained constraint_report convex_equilibrium convex_potential
        convex_potential_conv crate deep_opteq delta_rule
        descent_constraints dual_ascent dust energies energy_transformer equilibrium fast_weights
        feedforward fixed_point held_out_report hopfield hyper_set implicit_argmin implicit_root in_coordinates lagrangian layer_norm
        lista looped mesa multihead_attention multipliers_of nu_pi opteq opteq_conv perturbations primal_dual
        proportional_integral prox_gradient safeguarded symmetric_embedding
        tail_mean transformer transformer_parts unroll
    """
    ),
    "unroll_jax.certificates": (
        """
        Ball Certificate Curvature LipschitzBound Outcome apollonian_ball attack certified_radius certify
        contraction_bound conv_norm_bound curvature descent_constant equilibrium_lipschitz error_bound
        gradient_ratio in_descent_region in_proximal_region jacobian_penalty jacobian_radius lipschitz
        margin_loss matrix_norm_bound orthant_alignment orthonormal pad_channels pairwise_smoothness
        picard_steps pool proximal_constant quadratic_smoothness space_to_depth spectral_norm
        spectral_normalise unit_columns weight_norm weight_norm_bound
    """
    ),
    "unroll_jax.constrained": (
        """
        BOUNDS Constraint ConstraintReport DualAscent DualState PenaltyRule
        batch_violations chunked_cross_entropy class_losses column_means column_sums constraint_report
        descent_constraints descent_warnings dual_ascent gap growing_penalty held_out_report kl
        lagrangian level_constraints multipliers_of norm nu_pi primal_dual proportional_integral rate
        suggest_alpha tail_mean take_rows violations
    """
    ),
    "unroll_jax.energies": (
        """
        DESCENTS MONOTONES PROXIMALS REGULARISERS RHOS AsymmetricLayer AttentionParams ConvexPotentialParams CrateParams DustParams
        EnergyTransformerParams FeedForwardParams HeadsParams HopfieldParams HyperSetParams ListaLayerParams ListaParams
        MesaState Monotone OptEqParams Proximal Regulariser Rho SymmetricEmbedding TransformerParams TransformerParts
        UnrolledLayerParams absolute activation attention box causal_attention clip_spectrum convex_equilibrium
        convex_potential convex_potential_conv cosine_dictionary crate decorrelation deep_opteq deep_opteq_objective delta_rule dust elastic_net energy_transformer fast_weights
        feedforward group_shrinkage half_square hopfield hyper_set identity inverse_square layer_norm leaky_relu lista
        lista_layer mesa multi_block multihead_attention nonnegative_soft_threshold opteq opteq_conv opteq_objective
        regularised relu safeguarded sigmoid soft_threshold softplus symmetric_embedding tanh transformer
        transformer_parts unrolled_layer
    """
    ),
    "unroll_jax.fixed_point": (
        """
        ADJOINTS ON_FAILURE SOLVERS STATUS Adjoint ConvergenceError ConvergenceWarning EquilibriumInfo MonotoneParams
        Point Probe Solver accelerated_gradient anderson averaged conjugate_gradient damped equilibrium gmres
        implicit_argmin implicit_root jaxopt_solver monotone_equilibrium monotone_init monotone_weight neumann one_step
        picard unrolled zero_probe
    """
    ),
    "unroll_jax.linen": "Equilibrium",
    "unroll_jax.looped": (
        "path_independence run_loops sample_far_start sample_loops sample_segment"
        " step_sizes"
    ),
    "unroll_jax.models": (
        """
        DUST LISTA NO_TOKEN SCALINGS BehindStem Classifier Decoder DecoderConfig DeepOptEq DeepOptEqSegmenter Encoder
        EncoderConfig FeedForwardNetwork FullyConvolutionalNetwork Generated KeyValueCache MonotoneOperatorNetwork
        NeuralODE RotaryScaling Sampling UnrolledClassifier UnrolledTransformer ViT ViTConfig cosine_bases dct decode
        decoder_logits decoder_readout dictionary_bases empty_cache generate low_rank_changes merged_changes rms_norm
        scaled_identity speculate with_changes
    """
    ),
    "unroll_jax.nnx": "Equilibrium",
    "unroll_jax.perturbations": "Perturbation layer_noise lost_layer",
    "unroll_jax.train": (
        """
        EXPERIMENTS Callbacks ConstraintConfig DualConfig Model OwnConfig Plan PrimalConfig Task Trial UserError export fit own_task
        load
    """
    ),
}
# Modules that import flax, and which `from unroll_jax import *` omits.
OF_FLAX = {"unroll_jax.linen", "unroll_jax.nnx"}
LAZY = {"unroll_jax", "unroll_jax.train"}  # their names are imported on first use


def listed(module):
    return set(NAMES[module].split())


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_are_those_listed(module):
    package = importlib.import_module(module)
    assert set(package.__all__) == listed(module)
    assert module not in LAZY or dir(package) == sorted(package.__all__)


def test_every_public_package_is_listed():
    packages = {
        f"unroll_jax.{module.name}"
        for module in pkgutil.iter_modules(unroll_jax.__path__)
        if module.ispkg
    }
    exported = {
        f"unroll_jax.{name}"
        for name in unroll_jax.__all__
        if inspect.ismodule(getattr(unroll_jax, name))
    }
    assert (
        set(NAMES) == {"unroll_jax", "unroll_jax.train"} | OF_FLAX | packages | exported
    )


# JAX 0.12 compiles all again after imports of some of its parts.
FIRST_USES = """
import importlib
import sys

import jax
import unroll_jax

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else 0
)
function = jax.jit(lambda x: 2.0 * x)
function(1.0)
number = len(compiled)
for name in unroll_jax.__all__:
    getattr(unroll_jax, name)
for name in sys.argv[1:]:
    importlib.import_module(name)
function(1.0)
print(number, len(compiled))
"""


def test_imports_after_the_first_compile_nothing_again():
    command = [sys.executable, "-c", FIRST_USES, *NAMES]
    before, after = map(int, subprocess.check_output(command).split())
    assert 0 < before == after
