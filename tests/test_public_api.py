"""The public names, listed: none comes or goes by accident, or without a word in CHANGELOG.md."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import unroll_jax

ROOT = Path(__file__).resolve().parents[1]
# The public names of each module, by the version that brought them. 0.3.0 is the first published version: names
# come and go here until then. Later, a name that goes stays here and goes to REMOVED as well.
NAMES = {
    "unroll_jax": {
        "0.3.0": """
            ADJOINTS DESCENTS PROXIMALS RHOS SOLVERS Anchor Descent DualAscent DualState Entry
            EquilibriumInfo FeasibilityReport OptEqParams Proximal Rho Sides SlackState Trace alternating
            anderson attention augmented_lagrangian causal_attention certificates certify clip_spectrum
            constrained constraint_names constraint_report crate deep_opteq delta_rule descent_constraints
            dual_ascent dual_optimizer dust energies energy_transformer equilibrium fast_weights
            feasibility_report feedforward fixed_point hopfield hyper_set implicit_argmin implicit_root
            in_coordinates lagrangian layer_norm layer_weights lista looped mesa moreau_envelope
            multihead_attention multipliers_of nu_pi opteq opteq_conv perturbations primal_dual
            proportional_integral prox_gradient resilient_lagrangian safeguarded sample_constraints
            slack_descent symmetric_embedding tail_mean transformer transformer_parts unit_layer unroll
        """
    },
    "unroll_jax.certificates": {
        "0.3.0": """
            Ball Certificate Curvature Outcome StepCertificate apollonian_ball certify certify_alternating
            certify_descent contraction_bound conv_norm_bound curvature descent_constant
            equilibrium_lipschitz error_bound gradient_ratio in_descent_region in_proximal_region
            jacobian_penalty jacobian_radius matrix_norm_bound orthant_alignment pairwise_smoothness
            picard_steps proximal_constant quadratic_smoothness spectral_norm spectral_normalise
            weight_norm weight_norm_bound
        """
    },
    "unroll_jax.constrained": {
        "0.3.0": """
            BOUNDS Constraint ConstraintReport DualAscent DualState FeasibilityReport ImplicitDuals
            LayerConstraints PenaltyRule SlackDescent SlackState augmented_lagrangian batch_violations
            bertsekas_penalty chunked_cross_entropy class_losses column_means column_sums constraint_names
            constraint_report descent_constraints descent_warnings dual_ascent dual_optimizer
            feasibility_report gap growing_penalty held_out_report implicit_dual_ascent kl lagrangian
            layer_weights level_constraints mean_of_samples multipliers_of norm nu_pi primal_dual
            proportional_integral proximal_smoothing rate resilient_lagrangian sample_constraints
            slack_descent suggest_alpha switching_objective tail_mean take_rows violations
        """
    },
    "unroll_jax.energies": {
        "0.3.0": """
            DESCENTS MONOTONES PROXIMALS REGULARISERS RHOS AsymmetricLayer AttentionParams CrateParams
            DustParams EnergyTransformerParams FeedForwardParams HeadsParams HopfieldParams HyperSetParams
            ListaLayerParams ListaParams MesaState Monotone OptEqParams Proximal Regulariser Rho
            SymmetricEmbedding TransformerParams TransformerParts UnitLayerParams UnrolledLayerParams
            absolute activation attention box causal_attention clip_spectrum cosine_dictionary crate
            decorrelation deep_opteq deep_opteq_objective delta_rule dust elastic_net
            energy_transformer fast_weights feedforward group_shrinkage half_square hopfield hyper_set
            identity inverse_square layer_norm leaky_relu lista lista_layer mesa moreau_envelope
            multi_block multihead_attention nonnegative_soft_threshold opteq opteq_conv opteq_objective
            regularised relu safeguarded sigmoid soft_threshold softplus symmetric_embedding tanh
            transformer transformer_parts unit_layer unrolled_layer
        """
    },
    "unroll_jax.fixed_point": {
        "0.3.0": """
            ADJOINTS ON_FAILURE SOLVERS SPLITTINGS STATUS Adjoint ConvergenceError ConvergenceWarning
            EquilibriumInfo MonotoneParams Point Probe Solver Unrolled accelerated_gradient anderson
            averaged conjugate_gradient damped equilibrium gmres implicit_argmin implicit_root
            jaxopt_solver monotone_equilibrium monotone_init monotone_weight neumann one_step phantom
            picard unrolled zero_probe
        """
    },
    "unroll_jax.linen": {
        "0.3.0": """
            Equilibrium
        """
    },
    "unroll_jax.looped": {
        "0.3.0": """
            Loops all_loops_loss never_rise path_independence run_loops sample_far_start sample_loops
            sample_segment step_sizes
        """
    },
    "unroll_jax.models": {
        "0.3.0": """
            DUST LISTA NO_TOKEN SCALINGS BehindStem Classifier Decoder DecoderConfig DeepOptEq
            DeepOptEqSegmenter Encoder EncoderConfig FeedForwardNetwork FullyConvolutionalNetwork
            Generated KeyValueCache MonotoneOperatorNetwork NeuralODE RotaryScaling Sampling Speculated
            UnrolledClassifier UnrolledTransformer ViT ViTConfig cosine_bases dct decode decoder_logits
            decoder_readout dictionary_bases empty_cache generate low_rank_changes merged_changes rms_norm
            scaled_identity speculate with_changes
        """
    },
    "unroll_jax.nnx": {
        "0.3.0": """
            Equilibrium
        """
    },
    "unroll_jax.perturbations": {
        "0.3.0": """
            Perturbation in_turn layer_noise lost_layer
        """
    },
    "unroll_jax.train": {
        "0.3.0": """
            EXPERIMENTS Callbacks ConstraintConfig DualConfig Model OwnConfig OwnTask PrimalConfig Task
            export fit load
        """
    },
}
# Modules that import flax, and which `from unroll_jax import *` omits.
OF_FLAX = {"unroll_jax.linen", "unroll_jax.nnx"}
# Removed names, by the first version without them: {"unroll_jax.models": {"0.4.0": "NAME NAME"}}.
REMOVED: dict[str, dict[str, str]] = {}
# The number of names of each published version: it keeps the list of that version from being edited.
PUBLISHED: dict[str, int] = {}
FIRST = "0.3.0"


def listed(table, module):
    return {name for names in table.get(module, {}).values() for name in names.split()}


def sections(text):
    """The code of each version's section of a changelog, `like this`, as one text."""
    parts = re.split(r"^## (\S+).*$", text, flags=re.MULTILINE)
    return {
        version: " ".join(re.findall(r"`([^`]+)`", part))
        for version, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def unexplained(names, removed, changelog):
    """The names that came after the first version, or went, without a mention in the section of their version."""
    mentioned = sections(changelog)
    versions = [(module, *entry) for table in (names, removed) for module, of in table.items() for entry in of.items()]
    return [
        f"{version}: {module}.{name}"
        for module, version, entries in versions
        for name in entries.split()
        if version != FIRST and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", mentioned.get(version, ""))
    ]


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_are_those_listed(module):
    assert set(importlib.import_module(module).__all__) == listed(NAMES, module) - listed(REMOVED, module)


def test_every_public_package_is_listed():
    packages = {f"unroll_jax.{module.name}" for module in pkgutil.iter_modules(unroll_jax.__path__) if module.ispkg}
    exported = {f"unroll_jax.{name}" for name in unroll_jax.__all__ if inspect.ismodule(getattr(unroll_jax, name))}
    assert set(NAMES) == {"unroll_jax", "unroll_jax.train"} | OF_FLAX | packages | exported


def test_names_that_come_or_go_after_the_first_version_are_in_the_changelog():
    assert unexplained(NAMES, REMOVED, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_a_name_without_a_line_in_the_changelog_is_reported():
    changelog = "# Changelog\n\n## 0.4.0 (unreleased)\n\n- `new(x)` and plain words.\n\n## 0.3.0\n\n- `words`.\n"
    names = {"unroll_jax": {"0.3.0": "old", "0.4.0": "new words"}}
    assert unexplained(names, {"unroll_jax": {"0.4.0": "old"}}, changelog) == [
        "0.4.0: unroll_jax.words",
        "0.4.0: unroll_jax.old",
    ]


def test_the_list_of_a_published_version_is_unchanged():
    counts = {version: sum(len(of.get(version, "").split()) for of in NAMES.values()) for version in PUBLISHED}
    assert counts == PUBLISHED


def test_removed_names_were_public():
    assert all(listed(REMOVED, module) <= listed(NAMES, module) for module in REMOVED)
