"""The equilibrium inside the OptEq models: its parameters, and the three ways to
find and differentiate it."""

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
    Unrolled,
    averaged,
    equilibrium,
    unrolled,
)
from unroll_jax.models.parts import event_ndim

__all__ = ["WAYS", "OptEqBase", "resolve_regulariser"]

#: Ways to train an equilibrium network: implicit gradients, unrolled steps, or unrolled steps of SAM.
WAYS = ("implicit", "unrolled", "averaged")


def resolve_regulariser(regulariser: str | Regulariser) -> Regulariser:
    """The `Regulariser` of a name of `REGULARISERS`, or the `Regulariser` given;
    else a ValueError or TypeError."""
    entry = look_up("regulariser", regulariser, REGULARISERS, Regulariser)
    return entry if isinstance(entry, Regulariser) else entry()


class OptEqBase(nn.Module):
    r"""The common part of `DeepOptEq` and `DeepOptEqSegmenter`: the equilibrium of a
    deep OptEq that sees features x.

    .. math:: z^* = T(z^*) , \quad T = f_L \circ \dots \circ f_1 , \quad
              f_l(z) = a W_l^T \sigma(W_l z + U_l x + b_l) + (1 - a) z .

    The three ways to find z^*, all from z = 0:

    - "implicit": `equilibrium` to ``tol``, with gradients by the implicit function
      theorem;
    - "unrolled": K = ``num_steps`` of z' = T(z), differentiated by autodiff;
    - "averaged": K steps of modified SAM (`averaged`), differentiated by autodiff; the
      regulariser is SAM's.

    Attributes:
      channels: width of the state z, or its channels.
      widths: hidden width, or channels, of each layer.
      input_layers: which layers see x, counted from 1; None is all.
      kernel_size: side of the square kernels of convolutions, odd.
      activation: sigma, a name of `MONOTONES` or a `Monotone`.
      skip: a in (0, 1]; 1 has no skip connection.
      use_bias: whether layers have b.
      way: see above.
      num_steps: K of the last two ways.
      solver: of `equilibrium`; for "averaged", the result of `averaged` if its numbers
        are not the default ones.
      adjoint: of `equilibrium`, for "implicit".
      tol: relative tolerance of the equilibrium; for the last two ways only what
        ``info`` calls converged.
      max_steps: cap of the solver, for "implicit".
      on_failure: "error", "warn" or "accept" for failed examples; None is "warn" for
        "implicit", else "accept".
      regulariser: a name of `REGULARISERS` or a `Regulariser`: a layer appended to T
        (`regularised`), which changes the problem; for "averaged", SAM's R in place of
        that. None is none, and |z|^2 / 2 for SAM.
      regulariser_step: step size g of the appended layer, prox_{g R} or I - g grad R
        where R has no prox.
      regulariser_smoothness: a Lipschitz constant L_R of the gradient, for "averaged"
        (whose step size is 1 / (2 L_R)) and a regulariser that states none; it must be
        None for those that do.
      max_norm: each W is scaled down, where it must be, to this spectral norm
        (`spectral_normalise`); None leaves it.
      norm_steps: None divides by an upper bound of the norm, for certain. Else by power
        iteration of so many steps, cheaper for convolutions of hundreds of channels;
        few steps may leave norms some percent above max_norm.
      allow_expansive: whether a W of norm above 1 is allowed outside of jit, where it
        is known (`opteq`).
      dtype, param_dtype: of the state (None: the input's; OptEq steps use at least
        float32) and of the parameters.
    """

    channels: int = 32
    widths: tuple[int, ...] = (64, 64, 64)
    input_layers: tuple[int, ...] | None = None
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    skip: float = 1.0
    use_bias: bool = True
    way: str = "implicit"
    num_steps: int = 20
    solver: str | Solver | None = None
    adjoint: str | Adjoint | Unrolled | None = None
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
        """Makes the layers' parameters and solves: to be called inside a compact
        method.

        The equilibrium is also sown as the intermediate "equilibrium".

        Args:
          x: features, (*batch, d) or (*batch, height, width, channels).
          convolutional: whether they are the latter.
          probe: of `equilibrium`, for "implicit"; shaped as ``info``.

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
        params = tuple(
            absorb_input(self._params(place, layer, image, compute), x)
            for place, layer in layers.items()
        )
        descent = deep_opteq(list(layers.values()))
        start = jnp.zeros((*x.shape[:-1], self.channels), compute)
        z, info = self._solve(
            descent, params, start, x.ndim - event_ndim(convolutional), probe
        )
        self.sow("intermediates", "equilibrium", z)
        return z, info

    def _layers(self, inputs: int, convolutional: bool) -> dict[int, Descent]:
        seeing = (
            range(1, len(self.widths) + 1)
            if self.input_layers is None
            else self.input_layers
        )
        options = {
            "activation": self.activation,
            "skip": self.skip,
            "allow_expansive": self.allow_expansive,
        }
        make = opteq_conv if convolutional else opteq
        if convolutional:
            options["kernel_size"] = self.kernel_size
        return {
            place: make(
                self.channels, width, inputs if place in seeing else None, **options
            )
            for place, width in enumerate(self.widths, start=1)
        }

    def _params(
        self, place: int, layer: Descent, image: tuple[int, int] | None, compute: Any
    ) -> OptEqParams:
        """Returns the parameters of layer ``place``; the layer stores a dict of W,
        and U and b if it has them."""

        def init(key: jax.Array) -> dict[str, Array]:
            made = layer.init(key)._asdict()
            absent = [name for name, value in made.items() if value is None] + (
                [] if self.use_bias else ["b"]
            )
            return {
                name: value.astype(self.param_dtype)
                for name, value in made.items()
                if name not in absent
            }

        weights = self.param(f"layer_{place}", init)
        params = OptEqParams(
            weights["W"],
            weights.get("U"),
            weights.get("b", jnp.zeros(self.widths[place - 1])),
        )
        if self.max_norm is not None:
            certified, steps = self.norm_steps is None, self.norm_steps or 1
            params = spectral_normalise(
                params,
                bound=self.max_norm,
                image_shape=image,
                certified=certified,
                num_steps=steps,
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
        regulariser = (
            None if self.regulariser is None else resolve_regulariser(self.regulariser)
        )
        if self.way == "averaged":
            solver = (
                _averaging(regulariser, self.regulariser_smoothness)
                if self.solver is None
                else self.solver
            )
        else:
            solver = self.solver
            if regulariser is not None:
                form = "gradient" if regulariser.prox is None else "prox"
                descent = regularised(
                    descent, regulariser, step_size=self.regulariser_step, form=form
                )
                if regulariser.couples_examples and self.way == "implicit":
                    # then the whole batch is one state: its Jacobian has no blocks
                    batch_ndim = 0
        implicit = self.way == "implicit"
        on_failure = self.on_failure or ("warn" if implicit else "accept")
        return equilibrium(
            descent,
            params,
            start,
            solver=solver,
            adjoint=self.adjoint if implicit else unrolled(self.num_steps),
            tol=self.tol,
            max_steps=self.max_steps,
            # Nobody sees the equilibrium of a dummy input; without the callback,
            # jitting init drops the whole solve.
            on_failure="accept" if self.is_initializing() else on_failure,
            batch_ndim=batch_ndim,
            probe=probe,
        )

    def _check(self) -> None:
        check_fields(self, at_least(1), "channels", "widths", "num_steps", "norm_steps")
        require(self.widths, "widths", "name at least one layer", "()")
        check_fields(self, in_interval(f"[1, {len(self.widths)}]"), "input_layers")
        check_fields(self, one_of(WAYS), "way")
        check_fields(
            self, POSITIVE, "max_norm", "regulariser_step", "regulariser_smoothness"
        )
        adjoint, solver = f"{self.adjoint!r}", f"{self.solver!r}"
        implicit = self.adjoint is None or self.way == "implicit"
        require(
            implicit,
            "adjoint",
            f'be None for way="{self.way}", differentiated by autodiff',
            adjoint,
        )
        if self.way == "averaged" and self.solver is not None:
            require(
                isinstance(self.solver, Solver),
                "solver",
                'be of averaged(...) for way="averaged"',
                solver,
            )
            alone = self.regulariser is None
            require(
                alone,
                "regulariser",
                'be None for way="averaged" with a solver, which has its own',
                "one",
            )


def _averaging(regulariser: Regulariser | None, smoothness: float | None) -> Solver:
    if regulariser is None:
        return averaged()
    stated = regulariser.smoothness
    allowed = f"be None for a regulariser that states its own, {stated}"
    require(
        stated is None or smoothness is None,
        "regulariser_smoothness",
        allowed,
        smoothness,
    )
    smoothness = smoothness if stated is None else stated
    if smoothness is None:
        raise ValueError(
            'regulariser must have a smoothness for way="averaged", got None; pass'
            " regulariser_smoothness"
        )
    return averaged(
        regulariser.value,
        smoothness=smoothness,
        couples_examples=regulariser.couples_examples,
    )
