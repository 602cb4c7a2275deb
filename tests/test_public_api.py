"""The public names, listed: none comes or goes by accident, or without a word in CHANGELOG.md."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import unroll_jax

ROOT = Path(__file__).resolve().parents[1]
# The public names of each package, by the version that brought them. A name that goes stays here, and goes to REMOVED.
# Names that come need no entry before their version is finished: until then CHANGELOG.md lists them.
NAMES = {
    "unroll_jax": {
        "0.1.0": """
            ADJOINTS DESCENTS DUAL_OPTIMIZERS PROXIMALS RHOS SOLVERS Anchor Descent DualAscent DualState Entry
            EquilibriumInfo FeasibilityReport OptEqParams Proximal Rho SlackState Trace alternating anderson
            attention causal_attention certificates certify clip_spectrum constrained constraint_names
            deep_opteq descent_constraints dual_ascent dual_optimizer dust energies equilibrium
            feasibility_report feedforward fixed_point hopfield lagrangian layer_norm layer_weights lista
            moreau_envelope multihead_attention nu_pi opteq opteq_conv positive_part proportional_integral
            resilient_lagrangian sample_constraints scaled_constraints slack_descent sweep_attention
            symmetric_embedding tail_mean transformer transformer_parts unit_layer unroll
        """,
        "0.2.0": """
            Sides disturbances in_coordinates perturbations
        """,
        "0.3.0": """
            augmented_lagrangian constraint_report implicit_argmin implicit_root looped multipliers_of primal_dual prox
            prox_gradient
        """,
    },
    "unroll_jax.certificates": {
        "0.1.0": """
            Ball Certificate Curvature Outcome StepCertificate apollonian_ball certify certify_alternating
            certify_descent check_weight_norms contraction_bound conv_norm_bound curvature descent_constant
            error_bound gradient_ratio hessian_product in_descent_region in_proximal_region jacobian_norm
            jacobian_penalty jacobian_radius matrix_norm_bound orthant_alignment pairwise_smoothness
            picard_steps proximal_constant quadratic_smoothness spectral_norm spectral_normalise
            spectral_radius weight_norm weight_norm_bound
        """,
        "0.2.0": """
            equilibrium_lipschitz
        """,
        "0.3.0": """
            WeightGains split_gains weight_normalise
        """,
    },
    "unroll_jax.constrained": {
        "0.1.0": """
            DUAL_OPTIMIZERS Constraints DualAscent DualState FeasibilityReport LossMean NuPIState Reduction
            SlackDescent SlackState add_losses augmented_lagrangian constraint_names descent_constraints
            dual_ascent dual_optimizer empty_mean feasibility_report initial_sizes lagrangian layer_weights
            mean_of_samples named_figures nu_pi optimal_slacks positive_part proportional_integral
            relaxed_violations resilient_lagrangian sample_constraints scaled_constraints slack_descent
            tail_bound tail_mean
        """,
        "0.2.0": """
            FORMS CountedPositions chunked_cross_entropy constraint_bounds counted_positions relative_excess
        """,
        "0.3.0": """
            BOUNDS KINDS ORDERS ConstraintReport GroupReport ImplicitDuals ImplicitState LayerConstraints
            PenaltyRule PrimalDualState ProxyConstraint SmoothingState balancing_penalty
            bertsekas_penalty calibration_gap constant_penalty constraint_report cost_budget
            demographic_parity descent_warnings equal_opportunity equalised_odds expected_gates
            growing_penalty implicit_dual_ascent kl_budget level_constraints multipliers_of norm_bound
            plot_feasibility plot_multipliers positive_rate primal_dual proximal_smoothing sample_gates
            suggest_alpha switching_objective take_rows worst_class_loss
        """,
    },
    "unroll_jax.disturbances": {
        "0.2.0": """
            blur dropped salt_and_pepper
        """
    },
    "unroll_jax.energies": {
        "0.1.0": """
            DESCENTS MONOTONES PROXIMALS REGULARISERS RHOS AsymmetricLayer AttentionParams DustParams
            FeedForwardParams HeadsParams HopfieldParams ListaParams Monotone OptEqParams Proximal Regulariser
            Rho SymmetricEmbedding TransformerParams TransformerParts UnitLayerParams UnrolledLayerParams
            absolute activation attention band block_sparse box causal_attention clip_spectrum
            cosine_dictionary decorrelation deep_opteq deep_opteq_objective dust edges elu feedforward
            feedforward_smoothness group_shrinkage half_square hopfield identity inverse_square layer_norm
            leaky_relu lista moreau_envelope multi_block multihead_attention nonnegative_soft_threshold opteq
            opteq_conv opteq_objective opteq_potential orthonormal_heads regularised relu sigmoid
            soft_threshold softplus softsign star step_is_guaranteed sweep_attention symmetric_embedding tanh
            transformer transformer_parts unit_layer unrolled_layer
        """,
        "0.2.0": """
            ListaLayerParams ista_layer lista_layer
        """,
    },
    "unroll_jax.fixed_point": {
        "0.1.0": """
            ADJOINTS ON_FAILURE SOLVERS SPLITTINGS STATUS Adjoint ConvergenceError ConvergenceWarning
            EquilibriumInfo MonotoneParams Point Probe Problem SolveInfo Solver Unrolled accelerated_gradient
            anderson anderson_adjoint averaged bicgstab broyden conjugate_gradient damped equilibrium
            forward_backward gmres jaxopt_adjoint jaxopt_anderson jaxopt_fixed_point monotone_equilibrium
            monotone_init monotone_product monotone_resolvent monotone_weight neumann newton_cg one_step
            peaceman_rachford picard unrolled zero_probe
        """,
        "0.2.0": """
            bicgstab_gmres picard_anderson
        """,
        "0.3.0": """
            implicit_argmin implicit_root intermediate_states neumann_gcr phantom reversible
        """,
    },
    "unroll_jax.linen": {
        "0.3.0": """
            Equilibrium
        """,
    },
    "unroll_jax.looped": {
        "0.3.0": """
            DISTRIBUTIONS GRADIENTS Loops all_loops_loss exit_loops exit_threshold last_loops never_rise
            path_independence progressive_loss run_loops sample_far_start sample_loops sample_segment state_changes
        """,
    },
    "unroll_jax.models": {
        "0.1.0": """
            ACTIVATIONS POOLINGS WAYS BehindStem Classifier DeepOptEq DeepOptEqSegmenter Encoder EncoderConfig
            EncoderEmbeddings EncoderLayer FeedForwardNetwork FullyConvolutionalNetwork Head
            MonotoneOperatorNetwork NeuralODE TokenEmbeddings UnrolledClassifier UnrolledTransformer dct
            scaled_identity
        """,
        "0.2.0": """
            DUST LISTA NO_TOKEN READINGS SCALINGS Acceptance Costs Decoder DecoderConfig DraftChoice Generated
            KeyValueCache PatchEmbeddings PatchReadout RotaryScaling Sampling Speculated ViT ViTConfig
            acceptance choose_draft cosine_atoms cosine_bases decode decoder_logits decoder_readout
            dictionary_bases empty_cache expected_speedup expected_tokens generate low_rank_changes
            merged_changes rms_norm speculate tokens_a_call weight_costs with_changes
        """,
        "0.3.0": """
            STARTS LoopedNetwork LoopedText LoopedTransformer generate_looped
        """,
    },
    "unroll_jax.nnx": {
        "0.3.0": """
            Equilibrium
        """,
    },
    "unroll_jax.perturbations": {
        "0.2.0": """
            Perturbation in_turn layer_noise lost_layer
        """,
        "0.3.0": """
            layer_dropout layer_dropout_rates
        """,
    },
    "unroll_jax.prox": {
        "0.3.0": """
            elastic_net group_lasso lasso nonnegative_lasso nonnegative_ridge ridge
        """,
    },
    "unroll_jax.train": {
        "0.2.0": """
            EXPERIMENTS Callbacks ConstraintConfig DualConfig Model OwnConfig OwnTask PrimalConfig Task export
            fit load
        """
    },
}
# Modules that import flax, and which `from unroll_jax import *` leaves alone.
OF_FLAX = {"unroll_jax.linen", "unroll_jax.nnx"}
# The same of names that are gone, by the version without them: {"unroll_jax.models": {"0.3.0": "NAME NAME"}}.
REMOVED: dict[str, dict[str, str]] = {}
# How many names the list of a finished version has, so that it is not edited in place of REMOVED.
FINISHED = {"0.1.0": 261, "0.2.0": 73}


def listed(table, module):
    return {name for names in table.get(module, {}).values() for name in names.split()}


def sections(text):
    """The code of each version's section of a changelog, `like this`, as one text."""
    parts = re.split(r"^## (\S+).*$", text, flags=re.MULTILINE)
    return {
        version: " ".join(re.findall(r"`([^`]+)`", part))
        for version, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def untold(names, removed, changelog):
    """What came after the first version or went, and is not named in the section of its version."""
    told = sections(changelog)
    versions = [(module, *entry) for table in (names, removed) for module, of in table.items() for entry in of.items()]
    return [
        f"{version}: {module}.{name}"
        for module, version, entries in versions
        for name in entries.split()
        if version != "0.1.0" and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", told.get(version, ""))
    ]


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_are_those_listed(module):
    public = set(importlib.import_module(module).__all__)
    expected = listed(NAMES, module) - listed(REMOVED, module)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    new, missing = " ".join(sorted(public - expected)), sorted(expected - public)
    assert untold({module: {next(iter(sections(changelog))): new}}, {}, changelog) == [], "name them in CHANGELOG.md"
    assert not missing, f"gone from {module}: list them in REMOVED, and name them in CHANGELOG.md"


def test_every_public_package_is_listed():
    packages = {f"unroll_jax.{module.name}" for module in pkgutil.iter_modules(unroll_jax.__path__) if module.ispkg}
    exported = {f"unroll_jax.{name}" for name in unroll_jax.__all__ if inspect.ismodule(getattr(unroll_jax, name))}
    assert set(NAMES) == {"unroll_jax", "unroll_jax.train"} | OF_FLAX | packages | exported


def test_every_name_that_came_or_went_is_in_the_changelog_of_its_version():
    assert untold(NAMES, REMOVED, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_a_name_without_a_line_in_the_changelog_is_reported():
    changelog = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- `new(x)` and plain words.\n\n## 0.1.0\n\n- `words`.\n"
    names = {"unroll_jax": {"0.1.0": "old", "0.2.0": "new words"}}
    assert untold(names, {"unroll_jax": {"0.2.0": "old"}}, changelog) == [
        "0.2.0: unroll_jax.words",
        "0.2.0: unroll_jax.old",
    ]


@pytest.mark.parametrize("version", FINISHED)
def test_the_list_of_a_finished_version_is_whole(version):
    assert sum(len(of.get(version, "").split()) for of in NAMES.values()) == FINISHED[version]


def test_what_is_removed_was_public():
    assert all(listed(REMOVED, module) <= listed(NAMES, module) for module in REMOVED)
