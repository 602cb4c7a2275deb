"""Images per second of the networks of Table 1a of Xie et al. (2021)."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.gpu.ahead import Program
from benchmarks.programs import product_flops
from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.images.models import build

__all__ = ["FULL", "QUICK", "Sizes", "measure", "programs"]

NETWORKS = {"opteq": "xie2021-1a-none", "plain": "xie2021-1a-dnn"}
# of the published protocol
IMAGES = 50_000
EPOCHS = 200


class Sizes(NamedTuple):
    """Sizes of the steps."""

    batch: int
    side: int  # of the images
    changed: dict[str, Any]  # options of both networks
    product: int  # side of the product that measures the peak
    repeats: int


FULL = Sizes(128, 32, {}, 8192, 10)
QUICK = FULL._replace(product=4096, repeats=5)


def measure(sizes: Sizes) -> Iterator[Record]:
    """Times of a step, its share of the peak, and the hours of 200 epochs."""
    record = Record()
    peak = matmul_rate(*(sizes.product,) * 3, repeats=10)
    record.figures["peak_flops_a_second"] = peak
    yield record
    for name in NETWORKS:
        init, step, batch = _training(sizes, name)
        held = [jax.jit(init)(jax.random.key(0))]
        flops = product_flops(jax.make_jaxpr(step)(held[0], batch).jaxpr)
        program = jax.jit(step, donate_argnums=0).lower(held[0], batch).compile()

        def run(held: list = held, program: Any = program, batch: Any = batch) -> None:
            held[0] = jax.block_until_ready(program(held[0], batch))

        params, _ = held[0]
        parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        seconds = interleaved({name: run}, repeats=sizes.repeats)[name]
        median = record.time(f"{name}_seconds", seconds, flops=flops, rate=peak)
        hours = EPOCHS * IMAGES / sizes.batch * median / 3600.0
        record.figures |= {
            f"{name}_parameters": parameters,
            f"{name}_images_a_second": sizes.batch / median,
            f"{name}_share_of_peak": flops / median / peak,
            f"{name}_hours_for_{EPOCHS}_epochs": hours,
        }
        yield record
    record.ratio("opteq_over_plain", "opteq_seconds", "plain_seconds")
    record.notes.append(
        "float32 at JAX's default precision, as the peak; hours are of steps, without"
        " the data"
    )
    yield record


def programs(sizes: Sizes) -> dict[str, Program]:
    """A step of both networks."""
    made = {}
    for name in NETWORKS:
        init, step, batch = _training(sizes, name)
        state = jax.eval_shape(init, jax.random.key(0))
        made[f"{name} step"] = Program(step, (state, batch))
    return made


def _training(
    sizes: Sizes, name: str
) -> tuple[Callable[[jax.Array], Any], Callable[[Any, Any], Any], Any]:
    """``init(key)``, ``step(state, batch)`` and a batch of random images.

    The state is (params, state of the optimiser).
    """
    config: Any = EXPERIMENTS[NETWORKS[name]].config
    network = dataclasses.replace(config.network, **sizes.changed)
    draw = np.random.default_rng(0)
    images = np.float32(draw.normal(size=(sizes.batch, sizes.side, sizes.side, 3)))
    batch = jax.device_put((images, draw.integers(10, size=sizes.batch)))
    model = build(network, 10)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def init(key: jax.Array) -> Any:
        params = model.init(key, jnp.zeros((1, *images.shape[1:])))
        return params, optimizer.init(params)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            images, labels = batch
            logits: Any = model.apply(params, images)
            cross_entropy = optax.softmax_cross_entropy_with_integer_labels
            return jnp.mean(cross_entropy(logits[0], labels))

        params, opt_state = state
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return init, step, batch
