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
            ADJOINTS DESCENTS DUAL_OPTIMIZERS PROXIMALS RHOS SOLVERS Anchor Descent DualAscent DualState
            Entry EquilibriumInfo FeasibilityReport OptEqParams Proximal Rho Sides SlackState Trace
            alternating anderson attention augmented_lagrangian causal_attention certificates certify
            clip_spectrum constrained constraint_names constraint_report crate deep_opteq delta_rule
            descent_constraints disturbances dual_ascent dual_optimizer dust energies energy_transformer
            equilibrium fast_weights feasibility_report feedforward fixed_point hopfield hyper_set
            implicit_argmin implicit_root in_coordinates lagrangian layer_norm layer_weights lista looped
            mesa moreau_envelope multihead_attention multipliers_of nu_pi opteq opteq_conv perturbations
            positive_part primal_dual proportional_integral prox prox_gradient resilient_lagrangian
            safeguarded sample_constraints scaled_constraints slack_descent sweep_attention
            symmetric_embedding tail_mean transformer transformer_parts unit_layer unroll
        """
    },
    "unroll_jax.certificates": {
        "0.3.0": """
            Ball Certificate Curvature Outcome StepCertificate WeightGains apollonian_ball certify
            certify_alternating certify_descent check_weight_norms contraction_bound conv_norm_bound
            curvature descent_constant equilibrium_lipschitz error_bound gradient_ratio hessian_product
            in_descent_region in_proximal_region jacobian_norm jacobian_penalty jacobian_radius
            matrix_norm_bound orthant_alignment pairwise_smoothness picard_steps proximal_constant
            quadratic_smoothness spectral_norm spectral_normalise spectral_radius split_gains weight_norm
            weight_norm_bound weight_normalise
        """
    },
    "unroll_jax.constrained": {
        "0.3.0": """
            BOUNDS DUAL_OPTIMIZERS EXIT_CURRICULA EXIT_WEIGHTS FORMS KINDS ORDERS ConstraintReport
            Constraints CountedPositions DualAscent DualState FeasibilityReport GroupReport ImplicitDuals
            ImplicitState LayerConstraints LossMean NuPIState PenaltyRule PrimalDualState ProxyConstraint
            Reduction SlackDescent SlackState SmoothingState add_losses augmented_lagrangian
            balancing_penalty bertsekas_penalty calibration_gap chunked_cross_entropy constant_penalty
            constraint_bounds constraint_names constraint_report cost_budget counted_positions
            demographic_parity descent_constraints descent_warnings dual_ascent dual_optimizer empty_mean
            equal_opportunity equalised_odds exit_curriculum exit_weights expected_gates
            feasibility_report growing_penalty implicit_dual_ascent initial_sizes kl_budget lagrangian
            layer_weights level_constraints mean_of_samples multipliers_of named_figures norm_bound nu_pi
            optimal_slacks plot_feasibility plot_multipliers positive_part positive_rate primal_dual
            proportional_integral proximal_smoothing relative_excess relaxed_violations
            resilient_lagrangian sample_constraints sample_gates scaled_constraints slack_descent
            suggest_alpha switching_objective tail_bound tail_mean take_rows worst_class_loss
        """
    },
    "unroll_jax.disturbances": {
        "0.3.0": """
            blur dropped salt_and_pepper
        """
    },
    "unroll_jax.energies": {
        "0.3.0": """
            DESCENTS MONOTONES PROXIMALS REGULARISERS RHOS AsymmetricLayer AttentionParams CrateParams
            DustParams EnergyTransformerParams FeedForwardParams HeadsParams HopfieldParams HyperSetParams
            ListaLayerParams ListaParams MesaState Monotone OptEqParams Proximal Regulariser Rho
            SymmetricEmbedding TransformerParams TransformerParts UnitLayerParams UnrolledLayerParams
            absolute activation attention band block_sparse box causal_attention clip_spectrum
            cosine_dictionary crate decorrelation deep_opteq deep_opteq_objective delta_rule dust edges
            elu energy_transformer fast_weights feedforward feedforward_smoothness group_shrinkage
            half_square hopfield hyper_set identity inverse_square ista_layer layer_norm leaky_relu lista
            lista_layer mesa moreau_envelope multi_block multihead_attention nonnegative_soft_threshold
            opteq opteq_conv opteq_objective opteq_potential orthonormal_heads regularised relu
            safeguarded sigmoid soft_threshold softplus softsign star step_is_guaranteed sweep_attention
            symmetric_embedding tanh transformer transformer_parts unit_layer unrolled_layer
        """
    },
    "unroll_jax.fixed_point": {
        "0.3.0": """
            ADJOINTS ON_FAILURE SOLVERS SPLITTINGS STATUS Adjoint ConvergenceError ConvergenceWarning
            EquilibriumInfo MonotoneParams Point Probe Problem SolveInfo Solver Unrolled
            accelerated_gradient anderson anderson_adjoint averaged bicgstab bicgstab_gmres broyden
            conjugate_gradient damped equilibrium forward_backward gmres implicit_argmin implicit_root
            intermediate_states jaxopt_adjoint jaxopt_anderson jaxopt_fixed_point monotone_equilibrium
            monotone_init monotone_product monotone_resolvent monotone_weight neumann neumann_gcr
            newton_cg one_step peaceman_rachford phantom picard picard_anderson reversible unrolled
            zero_probe
        """
    },
    "unroll_jax.linen": {
        "0.3.0": """
            Equilibrium
        """
    },
    "unroll_jax.looped": {
        "0.3.0": """
            DISTRIBUTIONS GRADIENTS Loops all_loops_loss exit_loops exit_threshold last_loops never_rise
            path_independence progressive_loss run_loops sample_far_start sample_loops sample_segment
            state_changes
        """
    },
    "unroll_jax.models": {
        "0.3.0": """
            ACTIVATIONS DUST LISTA NO_TOKEN POOLINGS READINGS SCALINGS STARTS WAYS Acceptance BehindStem
            Classifier Costs Decoder DecoderConfig DeepOptEq DeepOptEqSegmenter DraftChoice Encoder
            EncoderConfig EncoderEmbeddings EncoderLayer ExitAdapter FeedForwardNetwork
            FullyConvolutionalNetwork Generated Head KeyValueCache LoopedNetwork LoopedText
            LoopedTransformer MonotoneOperatorNetwork NeuralODE PatchEmbeddings PatchReadout RotaryScaling
            Sampling Speculated TokenEmbeddings UnrolledClassifier UnrolledTransformer ViT ViTConfig
            acceptance adapter_losses choose_draft cosine_atoms cosine_bases dct decode decoder_logits
            decoder_readout dictionary_bases draft_vocabulary empty_cache exit_adapter exit_states
            expected_speedup expected_tokens generate generate_looped low_rank_changes merged_changes
            prompt_lookup rms_norm scaled_identity speculate tokens_a_call weight_costs with_changes
        """
    },
    "unroll_jax.nnx": {
        "0.3.0": """
            Equilibrium
        """
    },
    "unroll_jax.perturbations": {
        "0.3.0": """
            Perturbation in_turn layer_dropout layer_dropout_rates layer_noise lost_layer
        """
    },
    "unroll_jax.prox": {
        "0.3.0": """
            elastic_net group_lasso lasso nonnegative_lasso nonnegative_ridge ridge
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
