"""The monotone operator network (MON), whose weights make its equilibrium unique."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.fixed_point import Adjoint, EquilibriumInfo, Solver
from unroll_jax.fixed_point.monotone import (
    MonotoneParams,
    monotone_equilibrium,
    monotone_init,
    monotone_weight,
)
from unroll_jax.models.parts import check_array, classifier_head

__all__ = ["MonotoneOperatorNetwork"]


class MonotoneOperatorNetwork(nn.Module):
    r"""A classifier whose features are the equilibrium of a monotone layer.

    The layer is dense or convolutional.

    .. math:: z^* = \sigma(W z^* + U x + b) , \qquad W = (1 - m) I - A^T A + B - B^T .

    Convolutions of z wrap around the edges. Images are padded with zeros by the reach
    of the kernels: only padding wraps around. The parameters are ``input`` (U, b),
    ``operator`` (A, B and their scales) and ``head``. With 81 channels and ``pool=4``,
    32 x 32 x 3 images and 10 classes have 172,218 of them: "Single conv, 172K" of both
    papers.

    Attributes:
      channels: width of the state z, or its channels.
      margin: m, positive.
      step_size: as in `monotone_equilibrium`.
      activation: sigma, a name of `PROXIMALS` or a `Proximal`.
      solver, adjoint, tol, max_steps, on_failure: as in `monotone_equilibrium`.
      param_dtype: dtype of the parameters and of the computation. Inverses and
        transforms need at least float32.
      num_classes, convolutional, pool, kernel_size: as in `DeepOptEq`.

    Source: Winston and Kolter (2020), Section 4, "Single conv", and Xie et al. (2021),
    Table 1b.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model, x = MonotoneOperatorNetwork(num_classes=10), jnp.ones((5, 32, 32, 3))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> sum(leaf.size for leaf in jax.tree.leaves(variables))
      172218
    """

    num_classes: int
    convolutional: bool = True
    channels: int = 81
    kernel_size: int = 3
    margin: float = 1.0
    step_size: float | None = None
    activation: str | Proximal = "relu"
    pool: int | None = 4
    solver: str | Solver = "picard"
    adjoint: str | Adjoint | None = None
    tol: float = 1e-4
    max_steps: int = 200
    on_failure: str = "warn"
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."]
    ) -> tuple[Float[Array, "*batch classes"], EquilibriumInfo]:
        """Classifies x, as `DeepOptEq` does.

        ``info`` is of the splitting that found the equilibrium.
        """
        check_array(x, convolutional=self.convolutional)
        check_fields(self, at_least(1), "num_classes", "channels", "pool")
        image = None
        # The operator's convolutions wrap around: only this padding may do so.
        if self.convolutional:
            reach = self.kernel_size // 2
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(reach, reach)] * 2 + [(0, 0)])
            image = (x.shape[-3], x.shape[-2])
        W = monotone_weight(self._operator(), margin=self.margin, image_shape=image)
        z, info = monotone_equilibrium(
            W,
            self._inject(x.astype(self.param_dtype)),
            step_size=self.step_size,
            activation=self.activation,
            solver=self.solver,
            adjoint=self.adjoint,
            tol=self.tol,
            max_steps=self.max_steps,
            # As in OptEqBase: nobody sees the equilibrium of a dummy input.
            on_failure="accept" if self.is_initializing() else self.on_failure,
        )
        self.sow("intermediates", "equilibrium", z)
        return classifier_head(self)(z), info

    def _operator(self) -> MonotoneParams:
        window = self.kernel_size if self.convolutional else None

        def init(key: jax.Array) -> dict[str, Array]:
            made = monotone_init(key, self.channels, window)
            return {
                name: value.astype(self.param_dtype)
                for name, value in made._asdict().items()
            }

        return MonotoneParams(**self.param("operator", init))

    def _inject(self, x: Array) -> Array:
        """Returns U x + b."""
        options = {"param_dtype": self.param_dtype, "name": "input"}
        if not self.convolutional:
            return nn.Dense(self.channels, **options)(x)
        return nn.Conv(self.channels, (self.kernel_size,) * 2, **options)(x)
