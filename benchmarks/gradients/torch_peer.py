"""TorchDEQ on the same equilibria: the same steps written in PyTorch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import torch_peer
from benchmarks.gradients.jax_peers import installed
from benchmarks.gradients.problems import BlockParams, Cell, TanhParams

__all__ = ["gradient", "ways"]

MAX_STEPS = 3000
SOLVER_OPTIONS = ("m", "lam", "LBFGS_thres")


def ways(cell: Cell) -> dict[str, dict[str, Any]]:
    """Settings of ``torchdeq.get_deq``; a smaller ridge (lam) than its default is quicker.

    None of them for the transformer block, which is not written in PyTorch here.
    """
    if isinstance(cell.params, BlockParams) or torch_peer.torch_or_none() is None or installed("torchdeq") is None:
        return {}
    both = lambda name: {"f_solver": name, "b_solver": name}  # noqa: E731
    return {
        "fixed point": both("fixed_point_iter"),
        "Anderson 6": both("anderson") | {"lam": 1e-8},
        "Anderson 10": both("anderson") | {"lam": 1e-8, "m": 10},
        "fixed point, Anderson": both("anderson") | {"lam": 1e-8, "f_solver": "fixed_point_iter"},
        "Broyden 40": both("broyden") | {"LBFGS_thres": 40, "f_max_iter": 300, "b_max_iter": 300},
    }


def gradient(
    cell: Cell, settings: dict[str, Any], *, forward: float, backward: float
) -> Callable[[], tuple[np.ndarray, list[np.ndarray]]]:
    """A call that runs forward and backward, returning the state and the gradients in the order of the params.

    Both tolerances are relative and held by the worst example (``stop_mode="rel"``), as ours are.

    Args:
      cell: the problem.
      settings: of ``torchdeq.get_deq``: solvers and their options.
      forward: tolerance of the equilibrium.
      backward: tolerance of the adjoint system.
    """
    torch, torchdeq = torch_peer.torch_or_none(), installed("torchdeq")
    images = cell.start.ndim > 2
    tensor = lambda a: torch.from_numpy(np.array(a))  # noqa: E731
    channels_first = lambda a: tensor(a).permute(0, 3, 1, 2).contiguous() if images else tensor(a)  # noqa: E731
    start, x, target = (channels_first(a) for a in (cell.start, cell.x, cell.target))
    leaves = [tensor(leaf).requires_grad_() for leaf in jax.tree.leaves(cell.params)]
    weights = [tuple(leaves[place : place + 3]) for place in range(0, len(leaves), 3)]
    options = {"ift": True, "f_max_iter": MAX_STEPS, "b_max_iter": MAX_STEPS} | settings
    deq = torchdeq.get_deq(f_tol=forward, b_tol=backward, f_stop_mode="rel", b_stop_mode="rel", **options)
    solver = {name: settings[name] for name in SOLVER_OPTIONS if name in settings}

    def run() -> tuple[np.ndarray, list[np.ndarray]]:
        for leaf in leaves:
            leaf.grad = None
        if isinstance(cell.params, TanhParams):
            step = _tanh_step(torch, leaves[0], leaves[1], x)
        else:
            step = _conv_step(torch, weights[0], x) if images else _dense_step(torch, weights, x)
        fixed_point = deq(step, start, solver_kwargs=solver)[0][-1]
        (fixed_point * target).sum().backward()
        state = fixed_point.detach().permute(0, 2, 3, 1) if images else fixed_point.detach()
        return state.numpy(), [leaf.grad.numpy() for leaf in leaves]

    return run


def _tanh_step(torch: Any, W: Any, U: Any, x: Any) -> Callable[..., Any]:
    signal = x @ U
    return lambda z, tau=1.0: torch.tanh(z @ W + signal)


def _dense_step(torch: Any, weights: list[tuple[Any, ...]], x: Any) -> Callable[..., Any]:
    signals = [x @ U.T + b for _, U, b in weights]  # once a call, as XLA takes them out of its loops

    def step(z: Any, tau: float = 1.0) -> Any:
        for (W, _, _), signal in zip(weights, signals, strict=True):
            z = torch.relu(z @ W.T + signal) @ W
        return z

    return step


def _conv_step(torch: Any, weights: tuple[Any, ...], x: Any) -> Callable[..., Any]:
    """Kernels stay as ours are, (height, width, in, out)."""
    functional = torch.nn.functional
    kernel, of_input = (weight.permute(3, 2, 0, 1).contiguous() for weight in weights[:2])
    signal = functional.conv2d(x, of_input, weights[2], padding=1)

    def step(z: Any, tau: float = 1.0) -> Any:
        hidden = torch.relu(functional.conv2d(z, kernel, padding=1) + signal)
        return functional.conv_transpose2d(hidden, kernel, padding=1)

    return step
