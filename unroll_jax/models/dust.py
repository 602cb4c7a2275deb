"""DUST: unrolled sparse coding of sequences, with attention among codes."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from unroll_jax.arguments import POSITIVE, at_least, check, require
from unroll_jax.arrays import check_dtype
from unroll_jax.coordinates import Sides
from unroll_jax.descent import Anchor, Descent
from unroll_jax.energies.cosine import cosine_dictionary
from unroll_jax.energies.dust import DustParams, dust
from unroll_jax.energies.lista import ListaParams, lista
from unroll_jax.models.initializers import cosine_atoms
from unroll_jax.models.layered import LayeredModel, Record
from unroll_jax.models.parts import check_mask
from unroll_jax.numerics import compute_dtype, linear
from unroll_jax.perturbations import Perturbation

__all__ = ["DUST", "dictionary_bases"]


class _State(NamedTuple):
    """Codes after a layer, and their reconstruction by its dictionary.

    Their shapes are (*batch, n, num_atoms) and (*batch, n, dim).

    Where the layer is lost, the codes come from the layer before. The lost layer's
    dictionary still reads them.
    """

    codes: jax.Array
    output: jax.Array


class DUST(LayeredModel):
    """Sparse codes of a sequence by L layers, each read as a reconstruction.

    Layer l maps codes H to a step of `unroll_jax.dust` with its D, and its output is H
    D. Layer 0 has the codes :math:`x D^T / c` of the first dictionary: the step from
    zero, without the threshold. Where D is a tight frame, as the cosine transform is,
    layer 0 outputs the input times |D|_2^2 / c: by default at most 2.2% less.

    The parameters are ``layers.D`` (L, num_atoms, dim) and, with ``train_attention``,
    ``layers.V`` (L, num_atoms, num_atoms), without the leading axis if ``tied``.

    Attributes:
      dim, num_atoms, num_layers: widths of the signal and of the codes, and depth L.
      tied: whether all layers share their parameters.
      sparsity: lambda of the energy, in units of the signal.
      curvature: c of every layer. None takes a bound of |D|_2^2, which holds while D is
        trained.
      form: of attention, see `unroll_jax.dust`.
      self_loops: whether tokens attend to themselves, see `unroll_jax.dust`.
      attention_scale: the multiple of the identity that V is or starts as. Its square
        scales the codes' products.
      train_attention: whether V is a parameter. The paper trains only D.
      dtype: dtype of codes from layer to layer. None takes the input's. Steps are
        computed in float32 or wider.
      D_init: initialiser of the dictionary (num_atoms, dim), atoms as rows.
      param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Source: De Weerdt, Eldar, Deligiannis (2023) as read by Porras-Valenzuela et al.
    (2026), C.3, C.4. Layer 0 is ours.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model, x = DUST(dim=4, num_atoms=6, num_layers=2), jnp.ones((5, 3, 4))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> variables["params"]["layers"].D.shape
      (2, 6, 4)
      >>> jax.eval_shape(model.apply, variables, x).shape
      (3, 5, 3, 4)
    """

    dim: int
    num_atoms: int
    num_layers: int
    tied: bool = False
    sparsity: float = 0.1
    curvature: float | None = None
    form: str = "plain"
    self_loops: bool = True
    attention_scale: float = 0.25
    train_attention: bool = False
    dtype: Any = None
    D_init: Initializer = cosine_atoms()

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        *,
        record: Record | None = None,
        perturb: Perturbation | None = None,
    ) -> Any:
        """Runs all layers, as `UnrolledTransformer` does.

        Outputs are reconstructions (*batch, n, dim).

        Args:
          x: signals (*batch, n, dim).
          mask: True for real tokens, (*batch, n). None marks all as real.
          record: of reconstructions.
          perturb: replaces each layer's codes, see `unroll_jax.unroll`. Its dictionary
            reads the replaced ones. A lost layer
            (`unroll_jax.perturbations.lost_layer`) passes codes on, and its output is
            theirs by its D.

        Returns:
          The reconstructions of layers 0..L, (L + 1, *batch, n, dim), or what
          ``record`` returned, stacked likewise.
        """
        layer, start = self._descents()
        self._check(x, mask)
        params = self._layers()
        signal = Anchor(x, mask)
        compute = x.dtype if self.dtype is None else self.dtype
        output = compute_dtype(x)

        def dictionary(place: Any) -> Any:
            return params.D if self.tied else params.D[place]

        def read(codes: jax.Array, D: jax.Array) -> _State:
            # NaN in absent codes must not reach the gradients of the product.
            present = codes
            if mask is not None:
                present = jnp.where(mask[..., None], codes, 0.0)
            return _State(codes, linear(present.astype(output), D.astype(output)))

        def step(params: DustParams, state: _State, x: Anchor) -> _State:
            return read(layer.step(params, state.codes, x), params.D)

        def perturb_codes(number: jax.Array, before: _State, after: _State) -> _State:
            assert perturb is not None
            codes = perturb(number, before.codes, after.codes)
            return read(codes, dictionary(number - 1))

        def measure(state: _State) -> Any:
            return state.output if record is None else record(state.output)

        # Layer 0: one step from zero without the threshold, so that it sees all of x.
        zeros = jnp.zeros((*x.shape[:-1], self.num_atoms), compute)
        first = dictionary(0)
        codes = start.step(ListaParams(first), zeros, signal)
        return self.run_layers(
            step,
            params,
            read(codes, first),
            signal,
            num_layers=self.num_layers,
            record=measure,
            perturb=None if perturb is None else perturb_codes,
            tied=self.tied,
        )

    def _descents(self) -> tuple[Descent, Descent]:
        """The layer, and the step from zero that makes the codes of layer 0."""
        layer = dust(
            self.dim,
            self.num_atoms,
            form=self.form,
            sparsity=self.sparsity,
            curvature=self.curvature,
            attention_scale=None if self.train_attention else self.attention_scale,
            self_loops=self.self_loops,
        )
        start = lista(self.dim, self.num_atoms, sparsity=0.0, curvature=self.curvature)
        return layer, start

    def _check(self, x: jax.Array, mask: jax.Array | None) -> None:
        check_dtype("x", x)
        fits = x.ndim >= 2 and x.shape[-1] == self.dim
        require(fits, "x", f"be (*batch, n, dim={self.dim})", f"shape {x.shape}")
        check_mask(mask, x)

    def _layers(self) -> DustParams:
        check("num_layers", self.num_layers, at_least(1))
        check("attention_scale", self.attention_scale, POSITIVE)
        axes = () if self.tied else (self.num_layers,)

        def init(key: jax.Array) -> DustParams:
            D = self.D_init(key, (self.num_atoms, self.dim), self.param_dtype)
            V = None
            if self.train_attention:
                identity = jnp.eye(self.num_atoms, dtype=self.param_dtype)
                V = self.attention_scale * identity
            return jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (*axes, *leaf.shape)),
                DustParams(D, V),
            )

        return self.param("layers", init)


def dictionary_bases(dim: int) -> dict[str, Any]:
    """Bases for `unroll_jax.in_coordinates`, like the parameters of `DUST`.

    Pixels of atoms become coefficients.

    D has pixels as columns. V stays. The basis is the cosine transform, of a square
    patch where ``dim`` is a square.

    Args:
      dim: width of the signal, in pixels.

    Example:
      >>> import jax, jax.numpy as jnp, optax, unroll_jax
      >>> model, bases = DUST(16, 24, 2), dictionary_bases(16)
      >>> optimizer = unroll_jax.in_coordinates(optax.adam(2e-3), bases)
      >>> state = optimizer.init(model.init(jax.random.key(0), jnp.zeros((1, 3, 16))))
    """
    columns: Any = Sides(right=cosine_dictionary(dim, dim))
    return {"params": {"layers": DustParams(D=columns, V=None)}}
