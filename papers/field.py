"""`python -m papers.field [--steps N] [--out FOLDER]`: does it descend? Published
layers, drawn and trained, certified.

Each layer is repeated twelve times with one set of weights, on sets of eight tokens
near four random planes. It is trained to remove noise (a linear readout of the last
tokens, Adam at 3e-3), and every step of held-out sets is certified before and after.
"""

import argparse
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

from unroll_jax import (
    Descent,
    alternating,
    attention,
    certify,
    crate,
    energy_transformer,
    hyper_set,
    safeguarded,
    transformer,
    unroll,
)
from unroll_jax.certificates import Outcome, pairwise_smoothness
from unroll_jax.energies import transformer_parts
from unroll_jax.numerics import compute_dtype

__all__ = [
    "LAYERS",
    "Row",
    "draw_sets",
    "linear_floor",
    "main",
    "plot",
    "study",
    "table",
]

DEPTH, TOKENS, DIM, PLANES = 12, 8, 16, 4
HEADS: dict[str, Any] = {"num_heads": 4, "head_dim": 4}
CRATE: dict[str, Any] = {**HEADS, "sparsity": 0.02}
LAYERS: dict[str, Descent] = {
    "CRATE, public code": crate(DIM, **CRATE),
    "CRATE, paper (w = .3)": crate(DIM, **CRATE, compression=0.3),
    "CRATE, proximal step (ours)": crate(DIM, **CRATE, form="proximal"),
    "Energy Transformer, fixed step": energy_transformer(
        DIM, **HEADS, num_memories=64, guaranteed=False
    ),
    "Energy Transformer, bounded step (ours)": energy_transformer(
        DIM, **HEADS, num_memories=64, step_size=1.0
    ),
    "Hyper-SET, public code": hyper_set(DIM, **HEADS, width=64),
    "Hyper-SET, gradient, safeguarded (ours)": safeguarded(
        hyper_set(DIM, **HEADS, width=64, form="gradient")
    ),
    "softmax attention": attention(form="softmax", dim=DIM),
    "transformer of Yang et al.": transformer(DIM),
}
COLORS = {"guaranteed to descend": "#0072B2", "descends": "#99C7E0", "rises": "#D55E00"}
PROVED = ("(ours)", "softmax attention")  # every step descends, by construction


class Row(NamedTuple):
    """Shares of the steps of held-out sets, by layer, and the error.

    Attributes:
      name: of the layer in `LAYERS`.
      trained: whether after training.
      falls: (DEPTH,), the share of steps that do not raise the energy.
      guaranteed: (DEPTH,), the share that could not: by construction, or by the
        condition of `certify`.
      uphill: (DEPTH,), the share that points uphill. No step size helps there.
      error: mean squared error of the readout, over the noisy tokens' error.
    """

    name: str
    trained: bool
    falls: np.ndarray
    guaranteed: np.ndarray
    uphill: np.ndarray
    error: float


def draw_sets(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Noisy and clean sets of tokens (count, TOKENS, DIM), each token in one of
    `PLANES` fixed planes."""
    planes = jax.random.normal(jax.random.key(11), (PLANES, DIM, 2))
    planes = jnp.linalg.qr(planes)[0]
    key_plane, key_place, key_noise = jax.random.split(key, 3)
    chosen = jax.random.randint(key_plane, (count, TOKENS), 0, PLANES)
    clean = jnp.einsum(
        "btdk,btk->btd",
        planes[chosen],
        2.0 * jax.random.normal(key_place, (count, TOKENS, 2)),
    )
    return clean + 0.5 * jax.random.normal(key_noise, clean.shape), clean


def study(name: str, steps: int) -> list[Row]:
    """The rows of one layer, drawn and after ``steps`` of training."""
    layer = LAYERS[name]
    nonnegative = "CRATE" in name or name.startswith("transformer")
    held_out, target = draw_sets(jax.random.key(1), 256)

    def begin(noisy: jax.Array) -> jax.Array:
        return jnp.abs(noisy) if nonnegative else noisy  # where the energy is finite

    def error(params, noisy, clean):
        y, _ = unroll(
            layer,
            params["layer"],
            begin(noisy),
            None,
            num_layers=DEPTH,
            record=None,
            unroll=1,
        )
        read = y @ params["readout"] + noisy @ params["skip"]
        return jnp.mean((read - clean) ** 2) / jnp.mean((noisy - clean) ** 2)

    params = {
        "layer": layer.init(jax.random.key(2)),
        "readout": jnp.zeros((DIM, DIM)),
        "skip": jnp.eye(DIM),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))

    @jax.jit
    def train(carry, key):
        params, state = carry
        gradient = jax.grad(error)(params, *draw_sets(key, 64))
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def judge(params):
        certificate = certify(
            layer, params["layer"], begin(held_out), num_layers=DEPTH, num_points=1
        )
        before, after = certificate.energy[:-1], certificate.energy[1:]
        slack = 16.0 * jnp.finfo(compute_dtype(before)).eps * (1.0 + jnp.abs(before))
        guaranteed = _guaranteed(name, params["layer"], begin(held_out))
        shares = [
            jnp.mean(held, axis=1)
            for held in (after <= before + slack, guaranteed, certificate.slope > slack)
        ]
        return *shares, error(params, held_out, target)

    drawn = judge(params)
    (params, _), _ = jax.lax.scan(
        train,
        (params, optimizer.init(params)),
        jax.random.split(jax.random.key(3), steps),
    )
    assert jnp.isfinite(ravel_pytree(params)[0]).all(), f"{name}: training diverged"
    results = ((False, drawn), (True, judge(params)))
    return [
        Row(
            name,
            when,
            np.asarray(falls),
            np.asarray(guaranteed),
            np.asarray(uphill),
            float(last),
        )
        for when, (falls, guaranteed, uphill, last) in results
    ]


def _guaranteed(name: str, params: Any, y: jax.Array) -> jax.Array:
    """True for each step on each set that could not rise, (DEPTH, sets)."""
    if name.startswith("transformer"):
        parts = transformer_parts(DIM)
        energies, step = (
            (parts.attention.energy, parts.feedforward.energy),
            parts.attention.step,
        )
        layer = alternating(
            *energies, f_step=step, g_step_size=parts.step_size, phi=parts.phi
        )
        of_attention = pairwise_smoothness()

        def smoothness(params: Any, y: jax.Array, x: Any) -> jax.Array:
            return of_attention(params, y, x) + _quadratic_norm(params, y, x)

        certificate = certify(
            layer, params, y, smoothness=smoothness, num_layers=DEPTH, num_points=1
        )
        return certificate.outcome == Outcome.GUARANTEED
    return jnp.full((DEPTH, len(y)), name.endswith(PROVED))


def table(rows: list[Row], linear: float) -> str:
    """A table in Markdown: shares of the steps of all layers, drawn and trained, and
    errors."""
    lines = [
        (
            "| layer | guaranteed, drawn | trained | no rise, drawn | trained | uphill,"
            " drawn | trained | error, trained |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for drawn, trained in zip(rows[::2], rows[1::2], strict=True):
        pairs = [(row.guaranteed, row.falls, row.uphill) for row in (drawn, trained)]
        shares = [
            f"{np.mean(share):.0%}"
            for pair in zip(*pairs, strict=True)
            for share in pair
        ]
        lines.append(f"| {drawn.name} | {' | '.join(shares)} | {trained.error:.3f} |")
    return "\n".join([*lines, f"| *linear map* | | | | | | | *{linear:.3f}* |"])


def _quadratic_norm(params: Any, y: jax.Array, x: Any) -> jax.Array:
    """|I + sym(W_f)|_2, the smoothness of the feed-forward energy."""
    return jnp.linalg.norm(jnp.eye(DIM) + 0.5 * (params.W_f + params.W_f.T), 2)


def plot(rows: list[Row]) -> Figure:
    """Shares of guaranteed, descending and rising steps by layer, a row of panels
    for each name: drawn and trained."""
    names = list(dict.fromkeys(row.name for row in rows))
    figure = Figure(
        figsize=(8.0, 1.2 + 0.75 * len(names)), dpi=110, layout="constrained"
    )
    panels = figure.subplots(len(names), 2, sharex=True, sharey=True, squeeze=False)
    for row in rows:
        parts = (row.guaranteed, row.falls - row.guaranteed, 1.0 - row.falls)
        panel, base = panels[names.index(row.name), int(row.trained)], np.zeros(DEPTH)
        for part, (kind, color) in zip(parts, COLORS.items(), strict=True):
            panel.bar(
                range(1, DEPTH + 1),
                100.0 * part,
                bottom=base,
                width=1.0,
                color=color,
                label=kind,
            )
            base = base + 100.0 * part
    for panel, name in zip(panels[:, 0], names, strict=True):
        label = textwrap.fill(name.replace(" (ours)", ", ours"), 28)
        panel.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
        panel.set(xlim=(0.5, DEPTH + 0.5), ylim=(0, 100), xticks=range(1, DEPTH + 1))
    for panel, when in zip(
        panels[0], ("as drawn: steps, %", "after training: steps, %"), strict=True
    ):
        panel.set_title(when, fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("layer")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    return figure


def linear_floor() -> float:
    """The error of the best linear map of single tokens, fitted on 4,096 sets."""
    (noisy, clean), (held_out, target) = (
        draw_sets(jax.random.key(4), 4096),
        draw_sets(jax.random.key(1), 256),
    )
    weights = jnp.linalg.lstsq(noisy.reshape(-1, DIM), clean.reshape(-1, DIM))[0]
    return float(
        jnp.mean((held_out @ weights - target) ** 2)
        / jnp.mean((held_out - target) ** 2)
    )


def main() -> None:
    """Prints the table and writes it, and the picture, into a folder."""
    parser = argparse.ArgumentParser(prog="python -m papers.field", description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="steps of training")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/field"),
        help="folder of table.md and field.png",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [row for name in LAYERS for row in study(name, options.steps)]
    text = table(rows, linear_floor())
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    plot(rows).savefig(options.out / "field.png")
    print(text)


if __name__ == "__main__":
    main()
