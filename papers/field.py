"""`python -m papers.field [--steps N] [--out FOLDER]`: published layers, certified.

Each layer is repeated twelve times with one set of weights, on sets of eight tokens
near four random planes. It is trained to remove noise (a linear readout of the last
tokens, Adam at 3e-3), and every step of held-out sets is certified before and after.
"""

import argparse
import functools
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
      trained: True after training.
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


@functools.partial(jax.jit, static_argnames="count")
def draw_sets(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Noisy and clean sets of tokens (count, TOKENS, DIM).

    Each token is in one of `PLANES` fixed planes.
    """
    planes = jax.random.normal(jax.random.key(11), (PLANES, DIM, 2))
    planes = jnp.linalg.qr(planes)[0]
    key_plane, key_place, key_noise = jax.random.split(key, 3)
    chosen = jax.random.randint(key_plane, (count, TOKENS), 0, PLANES)
    places = 2.0 * jax.random.normal(key_place, (count, TOKENS, 2))
    clean = jnp.einsum("btdk,btk->btd", planes[chosen], places)
    return clean + 0.5 * jax.random.normal(key_noise, clean.shape), clean


def study(name: str, steps: int) -> list[Row]:
    """The rows of one layer, drawn and after ``steps`` of training."""
    held_out, target = draw_sets(jax.random.key(1), 256)

    def error(params, noisy, clean):
        y, _ = unroll(
            LAYERS[name],
            params["layer"],
            _begin(name, noisy),
            None,
            num_layers=DEPTH,
            record=None,
            unroll=1,
        )
        read = y @ params["readout"] + noisy @ params["skip"]
        return jnp.mean((read - clean) ** 2) / jnp.mean((noisy - clean) ** 2)

    params = {
        "layer": LAYERS[name].init(jax.random.key(2)),
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
        shares = _shares(name, params["layer"], _begin(name, held_out))
        return shares, error(params, held_out, target)

    def row(params, *, trained):
        shares, last = jax.device_get(judge(params))
        falls, guaranteed, uphill = shares
        return Row(name, trained, falls, guaranteed, uphill, float(last))

    drawn = row(params, trained=False)
    keys = jax.random.split(jax.random.key(3), steps)
    (params, _), _ = jax.lax.scan(train, (params, optimizer.init(params)), keys)
    assert jnp.isfinite(ravel_pytree(params)[0]).all(), f"{name}: training diverged"
    return [drawn, row(params, trained=True)]


def _begin(name: str, noisy: jax.Array) -> jax.Array:
    """The first state of the layers, where their energy is finite."""
    nonnegative = "CRATE" in name or name.startswith("transformer")
    return jnp.abs(noisy) if nonnegative else noisy


def _shares(name: str, params: Any, y: jax.Array) -> list[jax.Array]:
    """Shares of the steps that do not rise, are guaranteed, and point uphill."""
    certificate = certify(LAYERS[name], params, y, num_layers=DEPTH, num_points=1)
    before = certificate.energy[:-1]
    after = certificate.energy[1:]
    # differences within round-off are no rise
    slack = 16.0 * jnp.finfo(compute_dtype(before)).eps * (1.0 + jnp.abs(before))
    falls = after <= before + slack
    uphill = certificate.slope > slack
    return [jnp.mean(s, axis=1) for s in (falls, _guaranteed(name, params, y), uphill)]


def _guaranteed(name: str, params: Any, y: jax.Array) -> jax.Array:
    """True for each step on each set that could not rise, (DEPTH, sets)."""
    if not name.startswith("transformer"):
        return jnp.full((DEPTH, len(y)), name.endswith(PROVED))
    parts = transformer_parts(DIM)
    layer = alternating(
        parts.attention.energy,
        parts.feedforward.energy,
        f_step=parts.attention.step,
        g_step_size=parts.step_size,
        phi=parts.phi,
    )
    of_attention = pairwise_smoothness()

    def smoothness(params: Any, y: jax.Array, x: Any) -> jax.Array:
        return of_attention(params, y, x) + _quadratic_norm(params, y, x)

    certificate = certify(
        layer, params, y, smoothness=smoothness, num_layers=DEPTH, num_points=1
    )
    return certificate.outcome == Outcome.GUARANTEED


def table(rows: list[Row], linear: float) -> str:
    """A table in Markdown: shares of the steps, drawn and trained, and errors."""
    header = (
        "| layer | guaranteed, drawn | trained | no rise, drawn | trained | uphill,"
        " drawn | trained | error, trained |"
    )
    lines = [header, "|---|---|---|---|---|---|---|---|"]
    for drawn, trained in zip(rows[::2], rows[1::2], strict=True):
        shares = []
        for field in ("guaranteed", "falls", "uphill"):
            means = (np.mean(getattr(row, field)) for row in (drawn, trained))
            shares += [f"{mean:.0%}" for mean in means]
        lines.append(f"| {drawn.name} | {' | '.join(shares)} | {trained.error:.3f} |")
    return "\n".join([*lines, f"| *linear map* | | | | | | | *{linear:.3f}* |"])


def _quadratic_norm(params: Any, y: jax.Array, x: Any) -> jax.Array:
    """|I + sym(W_f)|_2, the smoothness of the feed-forward energy."""
    return jnp.linalg.norm(jnp.eye(DIM) + 0.5 * (params.W_f + params.W_f.T), 2)


def plot(rows: list[Row]) -> Figure:
    """Shares of guaranteed, descending and rising steps by layer, drawn and trained.

    There is a row of panels for each name.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    size = (8.0, 1.2 + 0.75 * len(names))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    panels = figure.subplots(len(names), 2, sharex=True, sharey=True, squeeze=False)
    layers = range(1, DEPTH + 1)
    for row in rows:
        parts = (row.guaranteed, row.falls - row.guaranteed, 1.0 - row.falls)
        panel = panels[names.index(row.name), int(row.trained)]
        base = np.zeros(DEPTH)
        for part, (kind, color) in zip(parts, COLORS.items(), strict=True):
            bars = {"bottom": base, "width": 1.0, "color": color, "label": kind}
            panel.bar(layers, 100.0 * part, **bars)
            base = base + 100.0 * part
    for panel, name in zip(panels[:, 0], names, strict=True):
        label = textwrap.fill(name.replace(" (ours)", ", ours"), 28)
        panel.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
        panel.set(xlim=(0.5, DEPTH + 0.5), ylim=(0, 100), xticks=layers)
    panels[0, 0].set_title("as drawn: steps, %", fontsize=10)
    panels[0, 1].set_title("after training: steps, %", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("layer")
    legend = panels[0, 0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=3)
    return figure


def linear_floor() -> float:
    """The error of the best linear map of single tokens, fitted on 4,096 sets."""
    noisy, clean = draw_sets(jax.random.key(4), 4096)
    weights = jnp.linalg.lstsq(noisy.reshape(-1, DIM), clean.reshape(-1, DIM))[0]
    held_out, target = draw_sets(jax.random.key(1), 256)
    error = jnp.mean((held_out @ weights - target) ** 2)
    return float(error / jnp.mean((held_out - target) ** 2))


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
