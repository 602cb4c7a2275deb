"""TorchDEQ on the same equilibria: the same steps written in PyTorch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import torch_peer
from benchmarks.gradients.jax_peers import installed
from benchmarks.gradients.problems import Cell

__all__ = ["gradient", "ways"]

MAX_STEPS = 3000
SOLVER_OPTIONS = ("m", "lam")


def ways() -> dict[str, dict[str, Any]]:
    """Settings of ``torchdeq.get_deq``; a smaller ridge (lam) than its default is quicker."""
    if torch_peer.torch_or_none() is None or installed("torchdeq") is None:
        return {}
    both = lambda name: {"f_solver": name, "b_solver": name}  # noqa: E731
    return {
        "fixed point": both("fixed_point_iter"),
        "Anderson 6": both("anderson") | {"lam": 1e-8},
        "Anderson 10": both("anderson") | {"lam": 1e-8, "m": 10},
    }


def gradient(cell: Cell, settings: dict[str, Any], *, tol: float) -> Callable[[], tuple[np.ndarray, list[np.ndarray]]]:
    """A call that runs forward and backward, returning the state and the gradients in the order of the params.

    Both tolerances are relative and held by the worst example (``stop_mode="rel"``), as ours are.

    Args:
      cell: the problem.
      settings: of ``torchdeq.get_deq``: solvers and their options.
      tol: of both solves.
    """
    torch, torchdeq = torch_peer.torch_or_none(), installed("torchdeq")
    images = cell.start.ndim > 2
    tensor = lambda a: torch.from_numpy(np.array(a))  # noqa: E731
    channels_first = lambda a: tensor(a).permute(0, 3, 1, 2).contiguous() if images else tensor(a)  # noqa: E731
    start, x, target = (channels_first(a) for a in (cell.start, cell.x, cell.target))
    leaves = [tensor(leaf).requires_grad_() for leaf in jax.tree.leaves(cell.params)]
    weights = [tuple(leaves[place : place + 3]) for place in range(0, len(leaves), 3)]
    step = _conv_step(torch, weights[0], x) if images else _dense_step(torch, weights, x)
    options = {"ift": True, "f_max_iter": MAX_STEPS, "b_max_iter": MAX_STEPS} | settings
    deq = torchdeq.get_deq(f_tol=tol, b_tol=tol, f_stop_mode="rel", b_stop_mode="rel", **options)
    solver = {name: settings[name] for name in SOLVER_OPTIONS if name in settings}

    def run() -> tuple[np.ndarray, list[np.ndarray]]:
        for leaf in leaves:
            leaf.grad = None
        found = deq(step, start, solver_kwargs=solver)[0][-1]
        (found * target).sum().backward()
        state = found.detach().permute(0, 2, 3, 1) if images else found.detach()
        return state.numpy(), [leaf.grad.numpy() for leaf in leaves]

    return run


def _dense_step(torch: Any, weights: list[tuple[Any, ...]], x: Any) -> Callable[..., Any]:
    def step(z: Any, tau: float = 1.0) -> Any:
        for W, U, b in weights:
            z = torch.relu(z @ W.T + x @ U.T + b) @ W
        return z

    return step


def _conv_step(torch: Any, weights: tuple[Any, ...], x: Any) -> Callable[..., Any]:
    """Kernels stay as ours are, (height, width, in, out)."""
    functional = torch.nn.functional
    W, U, b = weights

    def step(z: Any, tau: float = 1.0) -> Any:
        kernel = W.permute(3, 2, 0, 1)
        signal = functional.conv2d(x, U.permute(3, 2, 0, 1), b, padding=1)
        hidden = torch.relu(functional.conv2d(z, kernel, padding=1) + signal)
        return functional.conv_transpose2d(hidden, kernel, padding=1)

    return step
