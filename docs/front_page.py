"""Draws what the three programs of the README show: `python docs/front_page.py`
writes docs/front_page.png."""

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STEPS = 1000


def draw(names: dict[str, Any], out: Path) -> None:
    """Draws accuracy by radius, residuals by example, and a bound with its price by
    step, given the programs' names."""
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(11, 3), layout="constrained"
    )
    radii = np.sort(names["radius"])
    above = 100.0 * (1.0 - np.arange(len(radii)) / len(radii))
    right_ones = radii > 0.0
    left.step(radii[right_ones], above[right_ones], label="certified")
    attacked = 100.0 * np.mean(names["margin"] > 0.0)
    left.plot(0.5, attacked, "o", color="C1", label="attacked")
    left.set(
        title="accuracy on 400 digits",
        xlabel="radius (L2, pixels in [0, 1])",
        ylabel="accuracy (%)",
        xlim=(0, None),
        ylim=(0, 102),
    )
    left.legend()
    info = names["info"]
    residuals = np.asarray(info.residual)
    converged = np.asarray(info.converged)
    order = np.argsort(residuals)
    places = np.arange(len(order))
    for label, kept in {
        "converged": converged[order],
        "failed, and reported": ~converged[order],
    }.items():
        middle.semilogy(
            places[kept], residuals[order][kept], ".", label=f"{kept.sum()} {label}"
        )
    middle.set(
        title="equilibria of 256 examples",
        xlabel="example, by residual",
        ylabel="relative residual",
    )
    middle.legend()
    w = np.zeros(3, np.float32)
    state = names["optimizer"].init(w)
    rows = []
    for _ in range(STEPS):
        prices = names["uj"].multipliers_of(state)
        gradients, (missed, _) = names["gradient"](w, prices)
        updates, state = names["update"](gradients, state, w, violations=missed)
        w = w + updates
        rows.append((missed["missed"] + 0.05, prices["missed"]))
    missed, price = np.asarray(rows).T
    right.plot(100 * missed, label="missed positives (%)")
    right.axhline(5, color="black", linestyle=":", label="bound (5%)")
    right.plot(price, label="price of the bound")
    right.set(title="a classifier under a bound", xlabel="step", yscale="log")
    right.legend()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    programs: dict[str, Any] = {}
    for block in re.findall(
        r"```python\n(.*?)```",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    ):
        exec(compile(block, "README.md", "exec"), programs)
    draw(programs, ROOT / "docs" / "front_page.png")
