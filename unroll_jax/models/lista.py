"""LISTA: iterative soft thresholding unrolled, each layer with its weights."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from unroll_jax.arguments import at_least, check_fields, require
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.energies.lista import ListaLayerParams, ista_layer, lista_layer
from unroll_jax.models.initializers import cosine_atoms
from unroll_jax.models.layered import LayeredModel, Record, record_in
from unroll_jax.perturbations import Perturbation

__all__ = ["LISTA"]


class LISTA(LayeredModel):
    """Sparse codes by L untied layers of soft thresholding.

    Every layer can be read out.

    Layer l maps z to soft(A z + B x, |theta|), see `unroll_jax.energies.lista_layer`.
    The parameters are ``layers.A`` (L, atoms, atoms), ``layers.B`` (L, atoms, dim) and
    ``layers.theta`` (L, atoms). Initially every layer is a step of ISTA for the Lasso
    :math:`\\tfrac12 |x - D^T z|^2 + \\lambda |z|_1`, or noise.

    Attributes:
      dim, num_atoms, num_layers: widths of the signals and of the codes, and depth L.
      sparsity: lambda of the Lasso that the first layers descend, in units of the
        signals.
      dictionary_init: initialiser of D (num_atoms, dim), atoms as rows, such as
        ``jax.nn.initializers.constant(D)``.
      noise: standard deviation of the initial weights. None starts as ISTA.
      param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Source: Gregor and LeCun (2010), untied as in Hadou et al. (2023), whose weights
    start as noise of 0.01.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model, x = LISTA(dim=4, num_atoms=6, num_layers=2), jnp.ones((5, 4))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> jax.eval_shape(model.apply, variables, x).shape  # codes of layers 0 to 2
      (3, 5, 6)
    """

    dim: int
    num_atoms: int
    num_layers: int
    sparsity: float = 0.1
    dictionary_init: Initializer = cosine_atoms()
    noise: float | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        z: jax.Array | None = None,
        *,
        record: Record | None = None,
        perturb: Perturbation | None = None,
    ) -> Any:
        """Runs all layers.

        Args:
          x: signals (*batch, dim).
          z: codes of layer 0, (*batch, num_atoms). None starts at 0.
          record: ``z -> pytree``, evaluated inside the scan at every layer's codes.
            None keeps the codes themselves.
          perturb: replaces each layer's output, see `unroll_jax.unroll`.

        Returns:
          The codes of layers 0..L, (L + 1, *batch, num_atoms), or what ``record``
          returned, stacked likewise.
        """
        check_dtype("x", x)
        require(
            x.ndim >= 1 and x.shape[-1] == self.dim,
            "x",
            f"be (*batch, dim={self.dim})",
            f"shape {x.shape}",
        )
        shape = (*x.shape[:-1], self.num_atoms)
        check_shape("z", z, shape, ", with the batch axes of x")
        start = jnp.zeros(shape, x.dtype) if z is None else z

        return self.run_layers(
            lista_layer,
            self._layers(),
            start,
            x,
            num_layers=self.num_layers,
            record=record_in(start.dtype, record),
            perturb=perturb,
        )

    def _layers(self) -> ListaLayerParams:
        check_fields(self, at_least(1), "dim", "num_atoms", "num_layers")
        check_fields(self, at_least(0.0), "sparsity", "noise")

        def init(key: jax.Array) -> ListaLayerParams:
            shape = (self.num_atoms, self.dim)
            dictionary = self.dictionary_init(key, shape, self.param_dtype)
            layer = ista_layer(dictionary, self.sparsity)
            stacked = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (self.num_layers, *leaf.shape)),
                layer,
            )
            noise = self.noise
            if noise is None:
                return stacked

            # in the shapes of ISTA's layers, with none of their values
            def draw(key: jax.Array, leaf: jax.Array) -> jax.Array:
                return noise * jax.random.normal(key, leaf.shape, leaf.dtype)

            keys = ListaLayerParams(*jax.random.split(key, len(stacked)))
            return jax.tree.map(draw, keys, stacked)

        return self.param("layers", init)
