"""The networks of images and scenes: an option for every choice."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, Le

from .fields import WIDEST, Basic, Depth, Iterations, Width


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """Options that networks for images share: the kind of their layers, and the stem before them."""

    convolutional: bool = True
    """Convolutions; else dense layers on flattened images."""
    stem: tuple[Width, ...] = ()
    """Channels of convolutions of stride 2 before all else: each halves the images."""


@dataclasses.dataclass(frozen=True)
class EquilibriumConfig:
    """Deep OptEq, without the layers around it."""

    channels: Width = 16
    """Channels of the state."""
    widths: Basic[tuple[Width, ...]] = (16, 32)
    """Hidden channels of each layer."""
    input_layers: tuple[Depth, ...] | None = None
    """Layers that see the input, counted from 1; None means all."""
    use_bias: bool = True
    """Give layers biases."""
    activation: str = "relu"
    """A name of unroll_jax.energies.MONOTONES."""
    skip: float = 1.0
    """a in (0, 1]: share of the layer in each step; 1 has no skip connection."""
    way: Basic[Literal["implicit", "unrolled", "averaged"]] = "implicit"
    """Method for the equilibrium and its gradient: implicit function theorem, K steps, or K steps of SAM."""
    num_steps: Annotated[int, Ge(1), Le(10**4)] = 20
    """K of unrolled and averaged."""
    regulariser: str | None = None
    """A name of unroll_jax.energies.REGULARISERS: a layer appended to the network, or what SAM regularises by."""
    regulariser_step: float = 1.0
    """Step size g of the appended layer, prox_(g R) or I - g grad R."""
    regulariser_smoothness: float | None = None
    """L_R of averaged, whose step size is 1 / (2 L_R), for a regulariser without one (decorrelation, absolute)."""
    max_norm: float | None = 0.9
    """Spectral norm that every W is kept to; None leaves them free (then nothing promises an equilibrium)."""
    norm_steps: Iterations | None = None
    """None divides by a certified upper bound of the norm; else power iteration of so many steps."""
    tol: float = 1e-3
    """Relative tolerance of the equilibrium and of the adjoint."""
    max_steps: Iterations = 100
    """Cap of the solver; metrics rows have its steps and the number of examples that converged."""


@dataclasses.dataclass(frozen=True)
class OptEqConfig(ClassifierConfig, EquilibriumConfig):
    """Deep OptEq behind a feature extractor."""

    features: Width | None = 16
    """Channels of the feature extractor before the equilibrium."""


@dataclasses.dataclass(frozen=True)
class SegmenterConfig(EquilibriumConfig):
    """Deep OptEq between a strided stem and a head that is enlarged to the image."""

    channels: Width = 32
    widths: Basic[tuple[Width, ...]] = (32, 64, 64)
    stem: tuple[Width, ...] = (16, 32)
    """Channels of the convolutions of stride 2 before the equilibrium."""


@dataclasses.dataclass(frozen=True)
class MonConfig(ClassifierConfig):
    """One monotone operator layer (Winston and Kolter, 2020)."""

    channels: Width = 16
    """Channels of the state."""
    margin: float = 1.0
    """m > 0: how strongly monotone I - W is kept."""
    splitting: Literal["peaceman_rachford", "forward_backward"] = "peaceman_rachford"
    """Operator splitting that solves for the equilibrium."""
    step_size: float | None = None
    """Of the splitting; None takes its usual one."""
    pool: Width | None = 4
    """Side of the windows that are averaged before the head; None averages over the whole image."""
    tol: float = 1e-3
    """Relative tolerance of the equilibrium."""
    max_steps: Iterations = 200
    """Cap of the splitting."""


@dataclasses.dataclass(frozen=True)
class OdeConfig(ClassifierConfig):
    """A neural ODE, integrated by diffrax from time 0 to 1."""

    widths: Basic[tuple[Width, ...]] = (32,)
    """Hidden channels of the vector field."""
    features: Width | None = 16
    """Channels of the feature extractor, which are those of the state."""
    augment: Annotated[int, Ge(0), Le(WIDEST)] = 0
    """Channels of zeros appended to the state: an augmented neural ODE."""
    tol: float = 1e-3
    """Relative and absolute tolerance of the integrator."""


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig(ClassifierConfig):
    """A plain network of the same layers, each applied once."""

    widths: Basic[tuple[Width, ...]] = (16, 32)
    """Channels of each layer."""
    features: Width | None = 16
    """Channels of the feature extractor before them."""
    activation: str = "relu"
    """A name of unroll_jax.energies.MONOTONES."""


@dataclasses.dataclass(frozen=True)
class FcnConfig:
    """A fully convolutional network: the segmenter's stem and head around plain convolutions."""

    widths: Basic[tuple[Width, ...]] = (32, 64, 64)
    """Channels of each layer."""
    stem: tuple[Width, ...] = (16, 32)
    """Channels of the convolutions of stride 2 before them."""
    activation: str = "relu"
    """A name of unroll_jax.energies.MONOTONES."""


def is_certifiable(network: object) -> bool:
    """Returns whether a Lipschitz constant is known: of plain networks, and of OptEq held by a certified norm below 1.

    SAM and regularisers change the map from features to states, and have none.
    """
    if isinstance(network, OptEqConfig):
        held = network.max_norm is not None and network.max_norm < 1.0 and network.norm_steps is None
        return held and network.way != "averaged" and network.regulariser is None
    return isinstance(network, FeedForwardConfig)
