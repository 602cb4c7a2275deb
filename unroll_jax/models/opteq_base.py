"""The equilibrium of the OptEq models: parameters, solution and gradient."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import (
    POSITIVE,
    at_least,
    check_fields,
    in_interval,
    look_up,
    one_of,
    require,
)
from unroll_jax.certificates.weights import spectral_normalise
from unroll_jax.descent import Descent
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.monotone import Monotone
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams, absorb_input
from unroll_jax.energies.equilibrium.regularisers import (
    REGULARISERS,
    Regulariser,
    regularised,
)
from unroll_jax.fixed_point import (
    Adjoint,
    EquilibriumInfo,
    Probe,
    Solver,
    averaged,
    equilibrium,
    unrolled,
)
from unroll_jax.models.parts import event_ndim

__all__ = ["GRADIENTS", "OptEqBase", "resolve_regulariser"]

#: Gradients of an equilibrium: implicit ones, of unrolled steps, or of those of SAM.
GRADIENTS = ("implicit", "unrolled", "averaged")


def resolve_regulariser(regulariser: str | Regulariser) -> Regulariser:
    """Returns the `Regulariser` of a name of `REGULARISERS`, or the given one.

    Others are a ValueError or TypeError.
    """
    entry = look_up("regulariser", regulariser, REGULARISERS, Regulariser)
    return entry if isinstance(entry, Regulariser) else entry()


class OptEqBase(nn.Module):
    r"""The equilibrium of a deep OptEq that sees features x.

    `DeepOptEq` and `DeepOptEqSegmenter` inherit it.

    .. math:: z^* = T(z^*) , \quad T = f_L \circ \dots \circ f_1 , \quad
              f_l(z) = a W_l^T \sigma(W_l z + U_l x + b_l) + (1 - a) z .

    z^* is found from z = 0, and differentiated, by one of `GRADIENTS`:

    - "implicit": `equilibrium` to ``tol``, with gradients by the implicit function
      theorem.
    - "unrolled": K = ``num_steps`` of z' = T(z), differentiated by autodiff.
    - "averaged": K steps of modified SAM (`averaged`), differentiated by autodiff. The
      regulariser is SAM's.

    Attributes:
      channels: width of the state z, or its channels.
      widths: hidden width, or channels, of each layer.
      input_layers: numbers of the layers that see x, from 1. None is all.
      kernel_size: side of the square kernels of convolutions, an odd number.
      activation: sigma, a name of `MONOTONES` or a `Monotone`.
      skip: a in (0, 1]. 1 has no skip connection.
      use_bias: whether layers have b.
      gradient: a name of `GRADIENTS`, see above.
      num_steps: K of "unrolled" and "averaged".
      solver: of `equilibrium`. For "averaged", the result of `averaged` if its numbers
        are not the default ones.
      adjoint: of `equilibrium`, for "implicit".
      tol: relative tolerance of the equilibrium. With a number of steps, only
        ``info.converged`` depends on it.
      max_steps: cap of the solver, for "implicit".
      on_failure: "error", "warn" or "accept" for failed examples. None is "warn" for
        "implicit", else "accept".
      regulariser: a name of `REGULARISERS` or a `Regulariser`. It becomes a layer that
        is appended to T (`regularised`), which changes the problem. For "averaged" it
        is SAM's R. None appends no layer, and is |z|^2 / 2 for SAM.
      regulariser_step: step size g of the appended layer, prox_{g R} or I - g grad R
        where R has no prox.
      regulariser_smoothness: a Lipschitz constant L_R of the gradient, for "averaged"
        (whose step size is 1 / (2 L_R)) and a regulariser that states none. It must be
        None for those that do.
      max_norm: largest spectral norm of each W. Larger ones are scaled down
        (`spectral_normalise`). None leaves them.
      norm_steps: None divides by an upper bound of the norm. A number takes power
        iteration of so many steps, cheaper for convolutions of hundreds of channels.
        Few steps may leave norms some percent above max_norm.
      allow_expansive: allows a W of norm above 1 outside of jit, where it is known
        (`opteq`).
      dtype: of the state. None is the input's. OptEq steps use at least float32.
      param_dtype: of the parameters.
    """

    channels: int = 32
    widths: tuple[int, ...] = (64, 64, 64)
    input_layers: tuple[int, ...] | None = None
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    skip: float = 1.0
    use_bias: bool = True
    gradient: str = "implicit"
    num_steps: int = 20
    solver: str | Solver | None = None
    adjoint: str | Adjoint | None = None
    tol: float = 1e-4
    max_steps: int = 200
    on_failure: str | None = None
    regulariser: str | Regulariser | None = None
    regulariser_step: float = 1.0
    regulariser_smoothness: float | None = None
    max_norm: float | None = None
    norm_steps: int | None = None
    allow_expansive: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def find_equilibrium(
        self, x: Float[Array, "..."], *, convolutional: bool, probe: Probe | None = None
    ) -> tuple[Float[Array, "..."], EquilibriumInfo]:
        """Makes the layers' parameters and solves.

        To be called inside a compact method.

        The equilibrium is also sown as the intermediate "equilibrium".

        Args:
          x: features, (*batch, d) or (*batch, height, width, channels).
          convolutional: whether they are the latter.
          probe: of `equilibrium`, for "implicit", shaped as ``info``.

        Returns:
          ``(z, info)``: z is (*batch, channels) or (*batch, height, width, channels),
          and ``info`` has one number per example (one in all for "implicit" with a
          regulariser that couples examples).
        """
        self._check()
        compute = x.dtype if self.dtype is None else self.dtype
        x = x.astype(compute)
        layers = self._layers(x.shape[-1], convolutional)
        image = (x.shape[-3], x.shape[-2]) if convolutional else None
        # U x + b does not depend on z: it is computed once, not in every step.
        params = []
        for place, layer in enumerate(layers, start=1):
            layer_params = self._params(place, layer, image, compute)
            params.append(absorb_input(layer_params, x))
        start = jnp.zeros((*x.shape[:-1], self.channels), compute)
        # Examples have their own equilibria, and are solved side by side.
        batch_ndim = x.ndim - event_ndim(convolutional)
        system = deep_opteq(layers)
        z, info = self._solve(system, tuple(params), start, batch_ndim, probe)
        self.sow("intermediates", "equilibrium", z)
        return z, info

    def _layers(self, inputs: int, convolutional: bool) -> list[Descent]:
        options: dict[str, Any] = {
            "activation": self.activation,
            "skip": self.skip,
            "allow_expansive": self.allow_expansive,
        }
        make = opteq
        if convolutional:
            make = opteq_conv
            options["kernel_size"] = self.kernel_size

        layers: list[Descent] = []
        for place, width in enumerate(self.widths, start=1):
            sees_input = self.input_layers is None or place in self.input_layers
            seen = inputs if sees_input else None
            layers.append(make(self.channels, width, seen, **options))
        return layers

    def _params(
        self, place: int, layer: Descent, image: tuple[int, int] | None, compute: Any
    ) -> OptEqParams:
        """Returns the parameters of layer ``place``.

        The layer stores a dict of W, and U and b if it has them.
        """

        def init(key: jax.Array) -> dict[str, Array]:
            made = layer.init(key)._asdict()
            if not self.use_bias:
                made["b"] = None
            return {
                name: value.astype(self.param_dtype)
                for name, value in made.items()
                if value is not None
            }

        weights = self.param(f"layer_{place}", init)
        W = weights["W"]
        b = weights.get("b", jnp.zeros(self.widths[place - 1], W.dtype))
        params = OptEqParams(W, weights.get("U"), b)
        if self.max_norm is not None:
            params = spectral_normalise(
                params,
                bound=self.max_norm,
                image_shape=image,
                certified=self.norm_steps is None,
                num_steps=self.norm_steps or 1,
            )
        return jax.tree.map(lambda leaf: leaf.astype(compute), params)

    def _solve(
        self,
        descent: Descent,
        params: Any,
        start: Array,
        batch_ndim: int,
        probe: Probe | None,
    ) -> tuple[Float[Array, "..."], EquilibriumInfo]:
        regulariser = None
        if self.regulariser is not None:
            regulariser = resolve_regulariser(self.regulariser)

        is_implicit = self.gradient == "implicit"
        solver = self.solver
        if self.gradient == "averaged":
            if solver is None:
                solver = _averaging(regulariser, self.regulariser_smoothness)
        elif regulariser is not None:
            # A prox is exact for any step size. A gradient step needs a small one.
            form = "gradient" if regulariser.prox is None else "prox"
            step_size = self.regulariser_step
            descent = regularised(descent, regulariser, step_size=step_size, form=form)
            if regulariser.couples_examples and is_implicit:
                # then the whole batch is one state: its Jacobian has no blocks
                batch_ndim = 0

        on_failure = self.on_failure or ("warn" if is_implicit else "accept")
        if self.is_initializing():
            # Nobody sees the equilibrium of a dummy input. Without the callback,
            # jitting init drops the whole solve.
            on_failure = "accept"
        return equilibrium(
            descent,
            params,
            start,
            solver=solver,
            adjoint=self.adjoint if is_implicit else unrolled(self.num_steps),
            tol=self.tol,
            max_steps=self.max_steps,
            on_failure=on_failure,
            batch_ndim=batch_ndim,
            probe=probe,
        )

    def _check(self) -> None:
        check_fields(self, at_least(1), "channels", "widths", "num_steps", "norm_steps")
        require(self.widths, "widths", "name at least one layer", "()")
        check_fields(self, in_interval(f"[1, {len(self.widths)}]"), "input_layers")
        check_fields(self, one_of(GRADIENTS), "gradient")
        numbers = ("max_norm", "regulariser_step", "regulariser_smoothness")
        check_fields(self, POSITIVE, *numbers)

        fits = self.adjoint is None or self.gradient == "implicit"
        allowed = f'be None for gradient="{self.gradient}", which is by autodiff'
        require(fits, "adjoint", allowed, repr(self.adjoint))
        if self.gradient == "averaged" and self.solver is not None:
            allowed = 'be of averaged(...) for gradient="averaged"'
            fits = isinstance(self.solver, Solver)
            require(fits, "solver", allowed, repr(self.solver))
            allowed = 'be None for gradient="averaged" with a solver, which has its own'
            require(self.regulariser is None, "regulariser", allowed, "one")


def _averaging(regulariser: Regulariser | None, smoothness: float | None) -> Solver:
    if regulariser is None:
        return averaged()
    stated = regulariser.smoothness
    if stated is not None:
        allowed = f"be None for a regulariser that states its own, {stated}"
        require(smoothness is None, "regulariser_smoothness", allowed, smoothness)
        smoothness = stated
    if smoothness is None:
        raise ValueError(
            'regulariser must have a smoothness for gradient="averaged", got None; pass'
            " regulariser_smoothness"
        )
    return averaged(
        regulariser.value,
        smoothness=smoothness,
        couples_examples=regulariser.couples_examples,
    )
