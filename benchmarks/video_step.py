"""A plain training step of the video models, against the same in compiled PyTorch.

The models are the unrolled transformer and DUST.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks import torch_peer
from benchmarks.constrained_step import cooper_peer
from benchmarks.constrained_step.problems import (
    UNROLLED,
    UnrolledSizes,
    noisy_frames,
    unrolled_transformer,
)
from benchmarks.constrained_step.steps import (
    PRIMAL_RATE,
    Problem,
    compiled_step,
    repeated,
)
from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate
from unroll_jax import descent_constraints
from unroll_jax.certificates import matrix_norm_bound
from unroll_jax.energies.cosine import cosine_dictionary
from unroll_jax.energies.lista import SQUARINGS
from unroll_jax.models import DUST

__all__ = ["Sparse", "dust", "main", "torch_dust_loss"]

RATE_OF = (1280, 256, 256)
REPEATS, FEW = 40, 8


class Sparse(NamedTuple):
    """Options of DUST, in addition to the sizes of the unrolled transformer."""

    sparsity: float = 0.3  # lambda
    attention_scale: float = 0.25  # of the codes that attention sees
    # c, fixed for both libraries. None is our bound, which moves with the dictionary.
    curvature: float | None = None


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints times of interleaved steps, their floors, and ratios to PyTorch."""
    sizes = UNROLLED._replace(num_layers=3)
    dictionary = jnp.float32(cosine_dictionary(sizes.dim, sizes.dim))
    fixed = Sparse(curvature=float(matrix_norm_bound(dictionary) ** 2))
    problems = {
        "UT": unrolled_transformer(sizes),
        "DUST": dust(sizes, fixed),
        "DUST, c moves": dust(sizes, Sparse()),
    }
    candidates: dict[str, Callable[[], object]] = {}
    params = {}
    for name, problem in problems.items():
        step = compiled_step(problem, constrained=False)
        candidates[name] = repeated(step)
        # before the first step, whose state is donated to the next
        params[name] = jax.device_get(step.state.params)

    cores = len(os.sched_getaffinity(0))
    torch = torch_peer.torch_if_wanted(peers)
    if torch is not None:
        torch.set_num_threads(cores)
        candidates["UT, torch compiled"] = cooper_peer.plain_loop(
            params["UT"], problems["UT"].batch, compile_model=True
        )
        candidates["DUST, torch compiled"] = torch_dust_loop(
            params["DUST"], problems["DUST"].batch, fixed
        )
    rate = matmul_rate(*RATE_OF)
    seconds = interleaved(candidates, repeats=FEW if quick else REPEATS)
    print(
        f"one step of Adam, float32, batch {sizes.batch}, L = {sizes.num_layers},"
        f" {cores} cores"
    )
    record = Record(figures={"matmul_rate": rate})
    _add(record, problems, seconds, rate)
    return record


def _add(
    record: Record, problems: dict[str, Problem], seconds: dict[str, Any], rate: float
) -> None:
    """Adds times and ratios to the record, and prints them."""
    flops = {name: problem.flops[0] for name, problem in problems.items()}
    record.times(seconds, flops=flops, rate=rate)
    print(
        "floor: matrix products of layers and, where c moves, of its bounds, at the"
        " rate of one large product"
    )
    for name in ("UT", "DUST"):
        peer = f"{name}, torch compiled"
        if peer in seconds:
            names = f"{name}_seconds", f"{peer}_seconds"
            ratio = record.ratio(f"{name}_over_torch", *names)
            print(f"{name}, ours / compiled PyTorch: {ratio:.3f}")


def dust(sizes: UnrolledSizes, sparse: Sparse) -> Problem:
    """Denoising by DUST: f_L is half the squared error of a token at the last layer."""
    model = DUST(sizes.dim, sizes.dim, sizes.num_layers, **sparse._asdict())
    batch = jax.device_put(noisy_frames(sizes))

    def layer_losses(params: Any, batch: Any, step: Array) -> tuple[Array, Array]:
        def record(y):
            return 0.5 * jnp.mean(jnp.sum((y - batch["clean"]) ** 2, axis=-1))

        losses: Any = model.apply(params, batch["noisy"], record=record)
        return losses[-1], losses

    tokens = sizes.batch * sizes.tokens
    # U D, its error by D^T, H' D
    forward = 2.0 * tokens * (3 * sizes.dim**2 + 2 * sizes.tokens * sizes.dim)
    bounds = 0.0
    if sparse.curvature is None:
        # Of every layer and of layer 0: the Gram matrix of D, its squarings, and one
        # product for the derivative.
        bounds = (sizes.num_layers + 1) * (SQUARINGS + 2) * 2.0 * sizes.dim**3
    return Problem(
        name=f"DUST, L = {sizes.num_layers}",
        init=lambda key: model.init(key, batch["noisy"]),
        batch=batch,
        last_loss=lambda params, batch: layer_losses(params, batch, jnp.int32(0))[0],
        layer_losses=layer_losses,
        constraints=descent_constraints(0.05, num_layers=sizes.num_layers),
        flops=(3.0 * sizes.num_layers * forward + bounds, 0.0),
    )


def torch_dust_loss(
    dictionaries: list[Any], noisy: Any, clean: Any, sparse: Sparse
) -> Any:
    """f_L in PyTorch, from a dictionary (atoms, pixels) for each layer."""
    torch = torch_peer.torch_or_none()
    c = sparse.curvature
    assert c is not None, "the peer computes no bound"
    codes = noisy @ dictionaries[0].T / c
    for D in dictionaries:
        seen = sparse.attention_scale * codes
        mixed = torch.softmax(seen @ seen.mT, dim=-1) @ codes
        moved = mixed + (noisy - mixed @ D) @ D.T / c
        codes = torch.nn.functional.softshrink(moved, sparse.sparsity / c)
    return 0.5 * ((codes @ dictionaries[-1] - clean) ** 2).sum(-1).mean()


def torch_dust_loop(params: Any, batch: Any, sparse: Sparse) -> Callable[[], Any]:
    """A call that takes a step of fused Adam on `torch_dust_loss`, compiled.

    It returns the loss.
    """
    torch = torch_peer.torch_or_none()
    stack = torch.from_numpy(np.array(params["params"]["layers"].D))
    dictionaries = [each.clone().requires_grad_() for each in stack]
    arrays = (np.array(batch[name]) for name in ("noisy", "clean"))
    noisy, clean = map(torch.from_numpy, arrays)
    loss_of = torch.compile(torch_dust_loss, fullgraph=True)
    optimizer = torch.optim.Adam(dictionaries, lr=PRIMAL_RATE, fused=True)

    def run() -> Any:
        optimizer.zero_grad()
        loss = loss_of(dictionaries, noisy, clean, sparse)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run
