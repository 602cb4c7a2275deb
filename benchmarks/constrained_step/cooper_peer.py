"""The unrolled transformer under the same constraints in PyTorch, its multipliers in
the hands of Cooper."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import torch_peer
from benchmarks.constrained_step.problems import ALPHA
from benchmarks.constrained_step.steps import DUAL_RATE, PRIMAL_RATE

__all__ = ["constrained_loop", "cooper_or_none", "layer_losses", "plain_loop"]


def cooper_or_none() -> Any:
    """The module ``cooper`` (cooper-optim), or None where it or PyTorch is not
    installed (extra ``peers``)."""
    if torch_peer.torch_or_none() is None:
        return None
    try:
        return importlib.import_module("cooper")
    except ImportError:
        return None


def layer_losses(
    layers: list[tuple[Any, Any, Any]], noisy: Any, clean: Any, every_layer: bool
) -> Any:
    """Losses of layers 0..L, or only of the last, for layers (V, W, U)."""
    torch = torch_peer.torch_or_none()

    def loss(y: Any) -> Any:
        return 0.5 * ((y - clean) ** 2).sum(-1).mean()

    y, losses = noisy, []
    for V, W, U in layers:
        if every_layer:
            losses.append(loss(y))
        projected = y @ V.T
        weights = torch.softmax(projected @ projected.mT, dim=-1)
        y = torch.relu((weights @ y) @ (0.5 * (W + W.T)) + y @ U)
    return torch.stack([*losses, loss(y)]) if every_layer else loss(y)


def plain_loop(
    params: Any, batch: dict[str, np.ndarray], *, compile_model: bool
) -> Callable[[], Any]:
    """A call that takes one step of Adam on f_L, and returns it."""
    layers, tensors, model = _prepared(params, batch, compile_model)
    optimizer = _adam(layers)

    def run() -> Any:
        optimizer.zero_grad()
        last = model(layers, tensors["noisy"], tensors["clean"], False)
        last.backward()
        optimizer.step()
        return last.detach()

    return run


def constrained_loop(
    params: Any, batch: dict[str, np.ndarray], *, compile_model: bool
) -> tuple[Callable[[], Any], Any, list[tuple[Any, Any, Any]]]:
    """A call that takes one step on the Lagrangian and one on the multipliers,
    returning the losses of all layers.

    Both are at the old parameters and multipliers, as ours are; multipliers start at 1.

    Returns:
      ``(run, multipliers, layers)``: the call and its trained arrays.
    """
    torch, cooper = torch_peer.torch_or_none(), cooper_or_none()
    layers, tensors, model = _prepared(params, batch, compile_model)

    class Descent(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
        """The descent constraints as Cooper states a problem."""

        def __init__(self) -> None:
            super().__init__()
            multiplier = cooper.multipliers.DenseMultiplier(
                init=torch.ones(len(layers))
            )
            self.descent = cooper.Constraint(
                cooper.ConstraintType.INEQUALITY, multiplier=multiplier
            )

        def compute_cmp_state(self) -> Any:
            losses = model(layers, tensors["noisy"], tensors["clean"], True)
            violations = losses[1:] - (1.0 - ALPHA) * losses[:-1]
            constraint = {self.descent: cooper.ConstraintState(violation=violations)}
            return cooper.CMPState(
                loss=losses[-1],
                observed_constraints=constraint,
                misc={"losses": losses},
            )

    problem = Descent()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=DUAL_RATE, maximize=True)
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem, primal_optimizers=_adam(layers), dual_optimizers=dual
    )

    def run() -> Any:
        return optimizer.roll().cmp_state.misc["losses"].detach()

    return run, problem.descent.multiplier.weight, layers


def _prepared(
    params: Any, batch: dict[str, np.ndarray], compile_model: bool
) -> tuple[Any, Any, Any]:
    """Weights a layer, which spares PyTorch the slices of a stack; the batch; and
    the model."""
    torch = torch_peer.torch_or_none()
    stacks = [torch.from_numpy(np.array(leaf)) for leaf in params["params"]["layers"]]
    layers = [
        tuple(stack[place].clone().requires_grad_() for stack in stacks)
        for place in range(len(stacks[0]))
    ]
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}
    return (
        layers,
        tensors,
        torch.compile(layer_losses, fullgraph=True) if compile_model else layer_losses,
    )


def _adam(layers: list[tuple[Any, Any, Any]]) -> Any:
    """Fused, which is the quickest here."""
    torch = torch_peer.torch_or_none()
    return torch.optim.Adam(
        [weight for layer in layers for weight in layer], lr=PRIMAL_RATE, fused=True
    )
