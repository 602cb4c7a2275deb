"""A supervised task: a network, what it is shown, and what is measured of it."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8

from train.data.augmentation import normalise
from train.errors import UserError
from train.gradients import rematerialised
from train.supervised.config import SupervisedConfig
from train.supervised.networks import adjoint_probe, build, sees_vectors
from train.supervised.objective import confusion, mean_cross_entropy
from unroll_jax.fixed_point import EquilibriumInfo, Probe

__all__ = ["AdjointSolve", "Equilibrium", "Task", "adjoint_solve", "supervised_task"]

Augment = Callable[[jax.Array, Any, Any], tuple[Any, Any]]


class Equilibrium(NamedTuple):
    """Of a batch, or of a split: means over examples; NaN for a network without an equilibrium.

    Attributes:
      residual: relative, of the fixed point.
      iterations: evaluations of the step.
      converged: share of the examples that met the tolerance.
    """

    residual: Any
    iterations: Any
    converged: Any


class AdjointSolve(NamedTuple):
    """Of the backward pass of a batch: means over examples; NaN for a network that solves no adjoint system.

    Attributes:
      residual: relative, of the adjoint system.
      iterations: of the adjoint's solver.
      converged: share of the examples that met the tolerance.
    """

    residual: Any
    iterations: Any
    converged: Any


class Task(NamedTuple):
    """What training and evaluation share.

    Attributes:
      init: ``key -> params``.
      logits: ``(params, images) -> (logits, Equilibrium)``, images uint8 (batch, height, width, channels).
      draw: ``(batch, key) -> batch``, augmented.
      loss: ``(params, batch, probe) -> (cross entropy in nats, (confusion matrix, Equilibrium))``; the gradient in
        ``probe`` is the statistics of the adjoint solve.
      probe: ``batch -> probe`` of zeros, or None for a network that solves no adjoint system.
      measure: ``(params, batch) -> (cross entropy, confusion matrix, Equilibrium)``, as they are.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[[Any, UInt8[Array, "batch h w c"]], tuple[Array, Equilibrium]]
    draw: Callable[[Any, jax.Array], Any]
    loss: Callable[[Any, Any, Probe | None], tuple[Array, tuple[Array, Equilibrium]]]
    probe: Callable[[Any], Probe | None]
    measure: Callable[[Any, Any], tuple[Array, Array, Equilibrium]]


def supervised_task(config: SupervisedConfig, data: Any, augment: Augment) -> Task:
    """The task of a configuration on its data.

    ``augment`` is ``(key, images, labels) -> (images, labels)``, what training may do to them.

    Raises:
      UserError: if the network cannot be built, naming what is wrong with it.
    """
    network: Any = config.network  # pyright: ignore[reportAttributeAccessIssue] (every subclass has one)
    model = build(network, data.num_classes)
    apply: Callable[..., tuple[Array, Any]] = model.apply  # pyright: ignore[reportAssignmentType] (Flax types loosely)
    flat = sees_vectors(network)

    def shown(images: Array) -> Array:
        pixels = normalise(images, data.mean, data.std)
        return pixels.reshape(len(pixels), -1) if flat else pixels

    def init(key: jax.Array) -> Any:
        return model.init(key, shown(jnp.zeros((1, *data.shape), jnp.uint8)))

    def logits(params: Any, images: Array, probe: Probe | None = None) -> tuple[Array, Equilibrium]:
        options = {} if probe is None else {"probe": probe}
        found, info = apply(params, shown(images), **options)
        return found, _summary(info)

    def draw(batch: Any, key: jax.Array) -> Any:
        return type(batch)(*augment(key, batch.images, batch.labels)) if config.augment else batch

    def loss(params: Any, batch: Any, probe: Probe | None) -> tuple[Array, tuple[Array, Equilibrium]]:
        found, info = logits(params, batch.images, probe)
        return mean_cross_entropy(found, batch.labels), (confusion(found, batch.labels), info)

    def measure(params: Any, batch: Any) -> tuple[Array, Array, Equilibrium]:
        found, info = logits(params, batch.images)
        return mean_cross_entropy(found, batch.labels), confusion(found, batch.labels), info

    try:
        jax.eval_shape(init, jax.random.key(0))
    except (ValueError, TypeError) as error:
        raise UserError(_named(network, str(error))) from error

    def probe(batch: Any) -> Probe | None:
        return adjoint_probe(network, len(batch.images))

    return Task(init, logits, draw, rematerialised(loss, config.remat), probe, measure)


def _named(network: Any, error: str) -> str:
    """The error of a module in the words of the command line: its options are the module's attributes."""
    name = error.split(maxsplit=1)[0]
    if name in {field.name for field in dataclasses.fields(network)}:
        return f"--network.{name.replace('_', '-')}{error.removeprefix(name)}"
    return f"the network does not fit the data: {error}"


def adjoint_solve(statistics: Probe | None) -> AdjointSolve:
    """What the gradient in the probe says of a batch."""
    if statistics is None:
        return AdjointSolve(*[jnp.full((), jnp.nan)] * 3)
    return AdjointSolve(*(jnp.mean(leaf) for leaf in statistics))


def _summary(info: EquilibriumInfo | None) -> Equilibrium:
    if info is None:
        return Equilibrium(*[jnp.full((), jnp.nan)] * 3)
    means = (jnp.mean(jnp.asarray(leaf, jnp.float32)) for leaf in (info.residual, info.steps, info.converged))
    return Equilibrium(*means)
