"""Cost of 1 to 10,000 general constraints in a training step, dense and indexed:
over plain training, and Cooper's."""

import functools
import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import torch_peer
from benchmarks.constrained_step.cooper_peer import cooper_or_none
from benchmarks.record import Record
from benchmarks.timing import SAME_ALLOCATOR, interleaved, table
from unroll_jax import dual_ascent, lagrangian, multipliers_of, primal_dual
from unroll_jax.constrained import take_rows

__all__ = ["Setting", "main"]

RATE, DUAL_RATE, BOUND = 1e-3, 1e-2, 0.1
BAR = 1.05  # over the plain step, at 100 constraints


class Setting(NamedTuple):
    """Sizes of a classifier of three layers and of its batch, numbers of
    constraints, and timed runs."""

    inputs: int = 256
    width: int = 512
    batch: int = 512
    counts: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    repeats: int = 60


class Data(NamedTuple):
    """A batch, shares of its samples in every dense constraint (m, batch), and rows
    of the indexed multipliers."""

    x: np.ndarray
    labels: np.ndarray
    shares: np.ndarray
    rows: np.ndarray


FULL, QUICK = Setting(), Setting(width=128, batch=64, counts=(1, 100), repeats=5)


def draw(setting: Setting, count: int) -> tuple[list[np.ndarray], Data]:
    """Weights and a batch. A dense constraint is on a group of half of the samples,
    an indexed one on one sample."""
    rng = np.random.default_rng(0)
    sizes = (setting.inputs, setting.width, setting.width, 10)
    weights = [
        rng.normal(size=(a, b)).astype(np.float32) / math.sqrt(a)
        for a, b in itertools.pairwise(sizes)
    ]
    members = rng.random((count, setting.batch)) < 0.5
    shares = members / np.maximum(members.sum(axis=1, keepdims=True), 1)
    rows = rng.permutation(count)[: setting.batch]
    x = rng.normal(size=(setting.batch, setting.inputs)).astype(np.float32)
    return weights, Data(
        x, rng.integers(10, size=setting.batch), shares.astype(np.float32), rows
    )


def ours(setting: Setting, kind: str, count: int) -> Callable[[], object]:
    """A call that takes the next step, compiled, its state donated; ``kind`` is
    "plain", "dense" or "indexed"."""
    weights, data = draw(setting, count)
    optimizer = optax.with_extra_args_support(optax.adam(RATE))
    if kind != "plain":
        ascent = dual_ascent(optax.sgd(DUAL_RATE))
        optimizer = primal_dual(optimizer, ascent, violations=count)
    rows = jnp.asarray(data.rows) if kind == "indexed" else None

    def loss(weights: Any, opt_state: Any, data: Data) -> tuple[Any, Any]:
        y = data.x
        for w in weights[:-1]:
            y = jax.nn.relu(y @ w)
        logits = y @ weights[-1]
        objective = jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(logits, data.labels)
        )
        if kind == "plain":
            return objective, {}
        scores, prices = jax.nn.sigmoid(logits[:, 0]), multipliers_of(opt_state)
        if rows is None:
            violations = data.shares @ scores - BOUND
        else:
            violations = scores[: len(data.rows)] - BOUND
            prices = take_rows(prices, rows)
        extra = {"violations": violations, "rows": rows}
        return lagrangian(objective, violations, prices), extra

    def step(state: Any, data: Data) -> Any:
        weights, opt_state = state
        gradient, extra = jax.grad(loss, has_aux=True)(weights, opt_state, data)
        updates, opt_state = optimizer.update(gradient, opt_state, weights, **extra)
        return optax.apply_updates(weights, updates), opt_state

    weights = list(map(jnp.asarray, weights))
    held = [(weights, optimizer.init(weights))]
    program = jax.jit(step, donate_argnums=0).lower(held[0], data).compile()

    def run() -> None:
        held[0] = jax.block_until_ready(program(held[0], data))

    return run


def coopers(setting: Setting, kind: str, count: int) -> Callable[[], object]:
    """The same step in PyTorch: network and loss compiled, fused Adam; constraints
    and multipliers by Cooper."""
    torch, cooper = torch_peer.torch_or_none(), cooper_or_none()
    arrays, data = draw(setting, count)
    weights = [torch.from_numpy(array).requires_grad_() for array in arrays]
    x, labels, shares, rows = (torch.from_numpy(np.array(array)) for array in data)
    adam = torch.optim.Adam(weights, lr=RATE, fused=True)

    compiled = _compiled()

    def plain() -> None:
        adam.zero_grad()
        compiled(weights, x, labels)[0].backward()
        adam.step()

    class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
        """The same constraints as Cooper states them."""

        def __init__(self) -> None:
            super().__init__()
            multipliers = cooper.multipliers
            make = (
                multipliers.IndexedMultiplier
                if kind == "indexed"
                else multipliers.DenseMultiplier
            )
            self.group = cooper.Constraint(
                cooper.ConstraintType.INEQUALITY, multiplier=make(num_constraints=count)
            )

        def compute_cmp_state(self) -> Any:
            objective, scores = compiled(weights, x, labels)
            violation = (
                shares @ scores if kind == "dense" else scores[: len(rows)]
            ) - BOUND
            features = rows if kind == "indexed" else None
            state = cooper.ConstraintState(
                violation=violation, constraint_features=features
            )
            return cooper.CMPState(
                loss=objective, observed_constraints={self.group: state}
            )

    if kind == "plain":
        return plain
    problem = Problem()
    dual = torch.optim.SGD(
        problem.dual_parameters(), lr=DUAL_RATE, maximize=True, foreach=False
    )
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem, primal_optimizers=adam, dual_optimizers=dual
    )
    return optimizer.roll


@functools.cache
def _compiled() -> Any:
    torch = torch_peer.torch_or_none()

    def network(weights: Any, y: Any, labels: Any) -> tuple[Any, Any]:
        for w in weights[:-1]:
            y = torch.relu(y @ w)
        logits = y @ weights[-1]
        return torch.nn.functional.cross_entropy(logits, labels), torch.sigmoid(
            logits[:, 0]
        )

    return torch.compile(network, fullgraph=True)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints medians of interleaved steps and their ratios, to the plain step and to
    Cooper's."""
    setting, record = QUICK if quick else FULL, Record()
    makers = {"ours": ours}
    if peers and cooper_or_none() is not None:
        torch_peer.torch_or_none().set_num_threads(len(os.sched_getaffinity(0)))
        makers["Cooper"] = coopers
        print(SAME_ALLOCATOR)
    cases = [("plain", 1), *itertools.product(("dense", "indexed"), setting.counts)]
    calls = {
        _key(who, *case): make(setting, *case)
        for case in cases
        for who, make in makers.items()
    }
    seconds = interleaved(calls, repeats=setting.repeats, settle=1)
    for name, runs in seconds.items():
        record.time(name, runs)
    rows = []
    for case in cases:
        row = ["{}, {:,}".format(*case)]
        names = [_key(who, *case) for who in makers]
        for who, name in zip(makers, names, strict=True):
            ratio = "{}, {}, {} over plain".format(who, *case)
            over = record.ratio(ratio, name, _key(who, "plain", 1))
            row += [1e3 * record.figures[name], over]
        if len(makers) > 1:
            row.append(record.ratio("ours over Cooper, {}, {}".format(*case), *names))
        rows.append(row)
    columns = [column for who in makers for column in (f"{who}, ms", "over plain")]
    columns += ["ours / Cooper"] * (len(makers) - 1)
    print(table(["constraints", *columns], rows))
    print(f"bar: 100 constraints take at most {BAR} times the plain step")
    return record


def _key(who: str, kind: str, count: int) -> str:
    return f"{who}, {kind}, {count}_seconds"
