"""The network of Table 1a of Xie et al. (2021) and its plain network on random
images: images per second."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.gpu.ahead import Program, product_flops
from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.tasks.image_models import build

__all__ = ["FULL", "QUICK", "Sizes", "measure", "programs"]

NETWORKS = {"opteq": "xie2021-1a-none", "plain": "xie2021-1a-dnn"}
IMAGES, EPOCHS = 50_000, 200  # of the published protocol


class Sizes(NamedTuple):
    """Images in a batch and their side, what replaces options of both networks, side
    of a product, and runs."""

    batch: int
    side: int
    changed: dict[str, Any]
    product: int
    repeats: int


FULL = Sizes(128, 32, {}, 8192, 10)
QUICK = FULL._replace(product=4096, repeats=5)


def measure(sizes: Sizes) -> Iterator[Record]:
    """Seconds of a step, images per second, share of the peak, and hours that 200
    epochs of 50,000 images take."""
    record = Record()
    peak = record.figures["peak_flops_a_second"] = matmul_rate(
        *(sizes.product,) * 3, repeats=10
    )
    yield record
    for name in NETWORKS:
        init, step, batch = _training(sizes, name)
        held = [jax.jit(init)(jax.random.key(0))]
        flops = product_flops(jax.make_jaxpr(step)(held[0], batch).jaxpr)
        program = jax.jit(step, donate_argnums=0).lower(held[0], batch).compile()

        def run(held: list = held, program: Any = program, batch: Any = batch) -> None:
            held[0] = jax.block_until_ready(program(held[0], batch))

        record.figures[f"{name}_parameters"] = sum(
            leaf.size for leaf in jax.tree.leaves(held[0][0])
        )
        seconds = interleaved({name: run}, repeats=sizes.repeats)[name]
        median = record.time(f"{name}_seconds", seconds, flops=flops, rate=peak)
        record.figures[f"{name}_images_a_second"] = sizes.batch / median
        record.figures[f"{name}_share_of_peak"] = flops / median / peak
        record.figures[f"{name}_hours_for_{EPOCHS}_epochs"] = (
            EPOCHS * IMAGES / sizes.batch * median / 3600.0
        )
        yield record
    record.ratio("opteq_over_plain", "opteq_seconds", "plain_seconds")
    record.notes.append(
        "float32 at JAX's default precision, as the peak; hours are those of steps,"
        " without the data"
    )
    yield record


def programs(sizes: Sizes) -> dict[str, Program]:
    """A step of both networks."""
    made = {}
    for name in NETWORKS:
        init, step, batch = _training(sizes, name)
        made[f"{name} step"] = Program(
            step, (jax.eval_shape(init, jax.random.key(0)), batch)
        )
    return made


def _training(
    sizes: Sizes, name: str
) -> tuple[Callable[[jax.Array], Any], Callable[[Any, Any], Any], Any]:
    """``key -> (params, state of the optimiser)``, a step of both, and a batch of
    random images."""
    network: Any = EXPERIMENTS[NETWORKS[name]].config
    network = dataclasses.replace(network.network, **sizes.changed)
    draw = np.random.default_rng(0)
    images = draw.normal(size=(sizes.batch, sizes.side, sizes.side, 3)).astype(
        np.float32
    )
    batch = jax.device_put((images, draw.integers(10, size=sizes.batch)))
    model, optimizer = build(network, 10), optax.sgd(0.1, momentum=0.9)

    def init(key: jax.Array) -> Any:
        params = model.init(key, jnp.zeros((1, *images.shape[1:])))
        return params, optimizer.init(params)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            logits: Any = model.apply(params, batch[0])
            return jnp.mean(
                optax.softmax_cross_entropy_with_integer_labels(logits[0], batch[1])
            )

        params, opt_state = state
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return init, step, batch
