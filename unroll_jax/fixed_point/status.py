"""How the solve of an example ended."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.summaries import summary

__all__ = [
    "CONVERGED",
    "MAX_STEPS",
    "NONFINITE",
    "NONSYMMETRIC",
    "SINGULAR",
    "STALLED",
    "STATUS",
    "EquilibriumInfo",
    "fail_where",
]

CONVERGED, STALLED, MAX_STEPS, NONFINITE, NONSYMMETRIC, SINGULAR = range(6)
#: Ends of the solve of an example, in words; ``info.status`` is an index into these.
STATUS = (
    "converged",
    "stalled at round-off",
    "reached max_steps",
    "met a value that is not finite",
    "has a Jacobian that is not symmetric, which this method needs (choose another),",
    "has a system that is nearly singular for its dtype, or not positive definite,",
)


class EquilibriumInfo(NamedTuple):
    """Diagnostics of a solve, per example; printed, it is a summary.

    Attributes:
      residual: |f(z) - z| relative to |f(z)|, see ``tol`` and ``atol`` of
        `equilibrium`. Where |f(z)| is above 30 times the first state and plain steps,
        relative to that. Of an adjoint |v + J^T w - w| / |v|.
      steps: evaluations of the step, or of its adjoint, until the example ended.
      status: how it ended, an index into `unroll_jax.fixed_point.STATUS`.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> z, info = equilibrium(step, 0.5, start, batch_ndim=0)
      >>> round(float(z), 3), bool(info.converged), bool(info.residual <= 1e-5)
      (2.0, True, True)
    """

    residual: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    status: Int[Array, "*batch"]

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """True where the tolerance was met, or only round-off prevented it."""
        return self.status <= STALLED

    def __repr__(self) -> str:
        return summary(self, self._lines)

    def _lines(self) -> list[str]:
        residual, steps, status = map(np.ravel, self)
        if not len(status):
            return ["no examples"]

        counts = [
            f"{np.sum(status == code)} {words}"
            for code, words in enumerate(STATUS)
            if np.any(status == code)
        ]
        return [
            f"{len(status)} examples: {'; '.join(counts)}",
            f"steps: {steps.min()} to {steps.max()}, mean {steps.mean():.1f}",
            f"residual: {np.median(residual):.2g} median, {residual.max():.2g} worst",
        ]


def fail_where(
    failed: Bool[Array, " b"], residual: Float[Array, " b"]
) -> EquilibriumInfo:
    """Diagnostics of a check of rows, which takes no steps."""
    status = jnp.where(failed, MAX_STEPS, CONVERGED).astype(jnp.int32)
    return EquilibriumInfo(residual, jnp.zeros_like(status), status)
