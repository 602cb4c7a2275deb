"""PyTorch if installed, and the equations of `unroll_jax.transformer` in it."""

from typing import Any

from benchmarks.timing import SAME_ALLOCATOR

__all__ = [
    "compiled",
    "forward",
    "gradients",
    "step_and_energy",
    "torch_if_wanted",
    "torch_or_none",
]


def torch_or_none() -> Any:
    """The module ``torch``, or None where it is not installed (extra ``peers``)."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return torch


def torch_if_wanted(peers: bool) -> Any:
    """PyTorch if peers are timed and it is installed, else None. Prints which."""
    if not peers:
        return None
    torch = torch_or_none()
    missing = 'without PyTorch: pip install "unroll_jax[peers]" to compare with it'
    print(missing if torch is None else SAME_ALLOCATOR)
    return torch


def step_and_energy(
    W_a: Any, W_f: Any, y: Any, x: Any, step_size: float
) -> tuple[Any, Any]:
    """Y' = relu([softmax_beta(Y W_a W_a^T Y^T) Y] W_f^s + a X) and the energy at Y,
    sharing the softmax's logsumexp.

    The energy of the pairs is -1/2 sum_u (degree_u - 1), with log degree_u =
    logsumexp_u - |z_u|^2 / 2. As the tokens are not negative here, phi adds nothing.
    """
    torch = torch_or_none()
    z = y @ W_a
    halves = 0.5 * (z * z).sum(-1)
    logits = z @ z.mT - halves[..., None, :]
    totals = torch.logsumexp(logits, -1)
    attended = torch.exp(logits - totals[..., None]) @ y
    energy = -0.5 * (torch.exp(totals - halves) - 1.0).sum(-1)
    energy = energy + 0.5 * ((y @ W_f) * y + (y - x) ** 2).sum((-2, -1))
    mixing = (1.0 - step_size) * torch.eye(len(W_f)) - 0.5 * step_size * (W_f + W_f.mT)
    return torch.relu(attended @ mixing + step_size * x), energy


def forward(
    W_a: Any, W_f: Any, y: Any, x: Any, num_layers: int, step_size: float = 0.5
) -> tuple[Any, Any]:
    """The state after ``num_layers`` tied layers, and the energies of all states."""
    torch = torch_or_none()
    energies = []
    for _ in range(num_layers):
        y, energy = step_and_energy(W_a, W_f, y, x, step_size)
        energies.append(energy)
    energies.append(step_and_energy(W_a, W_f, y, x, step_size)[1])
    return y, torch.stack(energies).detach()


def gradients(
    function: Any, W_a: Any, W_f: Any, y: Any, x: Any
) -> tuple[Any, Any, Any]:
    """Gradients of the mean square of the last state in W_a and W_f, and energies.

    ``function`` is `forward` at a depth, or that compiled.
    """
    W_a.grad = W_f.grad = None
    last, energies = function(W_a, W_f, y, x)
    (last**2).mean().backward()
    return W_a.grad, W_f.grad, energies


def compiled(num_layers: int) -> tuple[Any, Any]:
    """`forward` of this depth as it is, and through ``torch.compile``."""
    torch = torch_or_none()

    def eager(W_a: Any, W_f: Any, y: Any, x: Any) -> tuple[Any, Any]:
        return forward(W_a, W_f, y, x, num_layers)

    return eager, torch.compile(eager, fullgraph=True)
