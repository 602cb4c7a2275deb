"""Networks of the comparison tables: monotone operators, neural ODE, plain and fully convolutional."""

from unroll_jax.models.baselines.feedforward_network import FeedForwardNetwork
from unroll_jax.models.baselines.fully_convolutional_network import FullyConvolutionalNetwork
from unroll_jax.models.baselines.monotone_network import MonotoneOperatorNetwork
from unroll_jax.models.baselines.neural_ode import NeuralODE

__all__ = [
    "FeedForwardNetwork",
    "FullyConvolutionalNetwork",
    "MonotoneOperatorNetwork",
    "NeuralODE",
]
