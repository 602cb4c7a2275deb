"""Neural ODE and augmented Neural ODE as classifiers, solved by diffrax."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields, in_interval
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone
from unroll_jax.energies.equilibrium.opteq_params import opteq_linear
from unroll_jax.models.parts import Features, check_array, classifier_head
from unroll_jax.numerics import common_dtype

__all__ = ["NeuralODE", "integrate", "vector_field"]

# (W, b) of each layer. W is (width, inputs), or a kernel (height, width, inputs,
# width): see `opteq_linear`.
FieldParams = list[tuple[Array, Array]]


class NeuralODE(nn.Module):
    r"""A classifier whose features are the end of a trajectory.

    The trajectory is :math:`\dot h = g(h, t)`, t from 0 to 1.

    h(0) are the features of x, with ``augment`` channels of zeros after them
    (augmented Neural ODE). The field g is a small network that sees t as one more
    channel of its input, with sigma after all its layers but the last. The parameters
    are ``features`` (if there are), ``field`` and ``head``.

    Attributes:
      widths: hidden widths, or channels, of g.
      augment: channels of zeros. 0 is a plain Neural ODE.
      tol: relative and absolute tolerance of the solver, Tsit5 with a step size common
        to the batch.
      max_steps: largest number of its steps. More are an error.
      param_dtype: dtype of the parameters and, where x is not wider, of the trajectory.
      num_classes, convolutional, features, pool, kernel_size, activation: as in
      `DeepOptEq`.

    Source: Chen et al. (2018), and Dupont, Doucet, Teh (2019) for ``augment``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"convolutional": False, "widths": (8,), "augment": 2}
      >>> model, x = NeuralODE(num_classes=3, **sizes), jnp.ones((5, 4))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> jax.eval_shape(model.apply, variables, x)[0].shape
      (5, 3)
    """

    num_classes: int
    convolutional: bool = True
    widths: tuple[int, ...] = (64, 64)
    features: int | None = None
    pool: int | None = None
    augment: int = 0
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    tol: float = 1e-3
    max_steps: int = 1000
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."]
    ) -> tuple[Float[Array, "*batch classes"], None]:
        """Classifies x, as `DeepOptEq` does: ``(logits, None)``.

        Raises an ImportError if diffrax is not installed.
        """
        check_array(x, convolutional=self.convolutional)
        names = ("num_classes", "widths", "features", "pool", "kernel_size")
        check_fields(self, at_least(1), *names, "max_steps")
        check_fields(self, at_least(0), "augment")
        check_fields(self, in_interval("(0, 1)"), "tol")
        if self.features is not None:
            features = Features(
                self.features,
                self.kernel_size if self.convolutional else None,
                self.activation,
                param_dtype=self.param_dtype,
                name="features",
            )
            x = features(x)
        start = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, self.augment)])
        start = start.astype(common_dtype(x, self.param_dtype))
        params = self._field(start.shape[-1])
        # To initialise the head only the shape of the end matters, that of the start.
        end = start
        if not self.is_initializing():
            sigma = resolve_monotone(self.activation).value

            def field(t: Any, h: Array, params: Any) -> Array:
                return vector_field(params, h, t, activation=sigma)

            end = integrate(
                field, start, params, tol=self.tol, max_steps=self.max_steps
            )
        self.sow("intermediates", "end", end)
        return classifier_head(self)(end), None

    def _field(self, channels: int) -> FieldParams:
        window = (self.kernel_size,) * 2 if self.convolutional else ()
        sizes = [channels, *self.widths, channels]

        def init(key: jax.Array) -> dict[str, dict[str, Array]]:
            made: dict[str, dict[str, Array]] = {}
            scale = jax.nn.initializers.lecun_normal()
            for place, layer_key in enumerate(jax.random.split(key, len(sizes) - 1)):
                inner = sizes[place]
                outer = sizes[place + 1]
                if place == 0:
                    inner += 1  # t
                W = scale(layer_key, (*window, inner, outer), self.param_dtype)
                zeros = jnp.zeros(outer, self.param_dtype)
                W = W if self.convolutional else W.T
                made[f"layer_{place + 1}"] = {"W": W, "b": zeros}
            return made

        made = self.param("field", init)
        return [
            (made[f"layer_{place}"]["W"], made[f"layer_{place}"]["b"])
            for place in range(1, len(sizes))
        ]


def vector_field(
    params: FieldParams,
    h: Float[Array, "..."],
    t: Float[Array, ""] | float,
    *,
    activation: Callable[[Array], Array],
) -> Float[Array, "..."]:
    """Returns g(h, t): layers W h + b with the activation between them.

    The first layer sees t as one more channel of its input.
    """
    time = jnp.broadcast_to(jnp.asarray(t, h.dtype), (*h.shape[:-1], 1))
    (W, b), *others = params
    hidden = opteq_linear(W, jnp.concatenate([h, time], axis=-1)) + b
    for W, b in others:
        hidden = opteq_linear(W, activation(hidden)) + b
    return hidden


def integrate(
    field: Callable[[Any, Any, Any], Any],
    start: Float[Array, "..."],
    params: Any,
    *,
    tol: float,
    max_steps: int,
) -> Float[Array, "..."]:
    """Returns h(1) of dh/dt = field(t, h, params), h(0) = start, differentiably.

    Raises a RuntimeError while it runs if the tolerance takes more than max_steps.

    Source: Tsitouras (2011), Tsit5, with the gradient of the discrete solution by
    checkpointed backpropagation.
    """
    try:
        import diffrax
    except ImportError as error:
        raise ImportError(
            "NeuralODE needs diffrax, which is not installed: pip install"
            " 'unroll_jax[train]'"
        ) from error
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=1.0,
        # The controller shortens it if needed. diffrax's own guess takes 4 steps where
        # 1 is within tol.
        dt0=1.0,
        y0=start,
        args=params,
        stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol),
        max_steps=max_steps,
    )
    assert solution.ys is not None  # saved at t1 by default
    return solution.ys[0]
