"""The report's tables, as rows of text that the terminal and the page share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from train.report.groups import METHOD_NAMES, Setting, Variant

__all__ = ["Table", "as_text", "cost_table", "feasibility_table", "number", "rmse_table", "set_apart", "with_seeds"]


@dataclass(frozen=True)
class Table:
    """A title, column names, rows as long as the header, and a note for under the table."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


ENFORCED = (
    " Multipliers and slacks are those of the checkpoint's step; mult. x viol.: of the tightened bounds that training "
    "enforces, less the slack."
)
# What the note says where constraints bind something else than the mean over samples, by `bind` of evaluation.json.
BOUND = {
    "tail": " Violations and margins are of the mean over the worst samples.",
    "positive": " Violations and margins are of the mean over samples of what exceeds the bound, less the leeway.",
}


def as_text(table: Table) -> str:
    """The table for a terminal: first column left, the others right aligned."""
    cells = (table.header, *table.rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.header))]
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(filter(None, [table.title, *lines, table.note]))


def rmse_table(setting: Setting) -> Table:
    """RMSE against test gamma for the noisy input and every variant; mean and range where there are several seeds."""
    columns = [_rmse_column(variant) for variant in setting.variants]
    rows = []
    for index, (gamma, noisy) in enumerate(zip(setting.gammas, setting.noisy_rmse(), strict=True)):
        mark = " *" if float(gamma) == setting.train_gamma else ""
        rows.append((f"{float(gamma):g}{mark}", number(noisy, 2), *(column[index] for column in columns)))
    several = any(len(variant.runs) > 1 for variant in setting.variants)
    note = "RMSE on the 0-255 scale, lower is better. * training gamma."
    note += " plain: method erm, no constraints." if setting.of("erm") else ""
    return Table(
        title=f"RMSE against test gamma, {setting.title}",
        header=("test gamma", "noisy input", *(with_seeds(variant) for variant in setting.variants)),
        rows=tuple(rows),
        note=note + (" Mean over the seeds, smallest and largest in brackets." if several else ""),
    )


def feasibility_table(setting: Setting, variant: Variant) -> Table:
    """Every layer of a variant on held-out data: loss, bound, violation, margin, multiplier, slack, descent."""
    margins = variant.margins()
    columns = (
        [number(value, 3) for value in variant.mean("layer_losses")],
        [number(value, 3) for value in variant.mean("bounds")],
        [number(value, 3, sign=True) for value in variant.mean("violations")],
        [number(100 * value, 1, sign=True) for value in margins.mean(0)],
        *([[number(100 * value, 1, sign=True) for value in margins.min(0)]] if len(variant.runs) > 1 else []),
        [number(value, 3) for value in variant.mean("multipliers")],
        [number(value, 3) for value in variant.mean("slacks")],
        [number(value, 4, sign=True) for value in variant.mean("complementary_slackness")],
        ["-", *(number(100 * value, 1) for value in variant.mean("descend_share"))],
    )
    worst = ("worst margin %",) if len(variant.runs) > 1 else ()
    header = ("layer", "loss", "bound", "violation", "margin %", *worst, "multiplier", "slack", "mult. x viol.")
    layers = [str(layer) for layer in range(setting.num_layers + 1)]
    constrained = variant.method == "constrained"
    enforced = "" if constrained else " (bounds not enforced)"
    tightened = (ENFORCED if constrained else "") + BOUND.get(variant.bind, "")
    verdict = f"{variant.feasible_runs} of {len(variant.runs)} runs feasible"
    return Table(
        title=f"Feasibility on held-out data, {with_seeds(variant)}{enforced}, {setting.title}",
        header=(*header, "descends %"),
        rows=tuple(zip(layers, *columns, strict=True)),
        note=f"{verdict} (tolerance {variant.scalar('tolerance'):.0%} of the bound; positive margin: room left). "
        f"Layer 0: bound is the reference loss.{tightened}",
    )


def cost_table(settings: Sequence[Setting]) -> Table | None:
    """What feasibility costs in RMSE at the training gamma, one row per constrained variant; None without a pair."""
    rows = []
    for setting in settings:
        for variant, other in setting.duels():
            index = setting.training_index
            plain, own = (one.scores().mean(0)[index] for one in (other, variant))
            rows.append(
                (
                    setting.title + set_apart(variant, other),
                    number(setting.noisy_rmse()[index], 2),
                    number(plain, 2),
                    number(own, 2),
                    number(100 * (own - plain) / plain if plain else np.nan, 1, sign=True),
                    f"{variant.feasible_runs} of {len(variant.runs)}",
                    number(100 * variant.worst()[2], 1, sign=True),
                    " / ".join(number(one.scalar("train_seconds"), 0) for one in (other, variant)),
                )
            )
    if not rows:
        return None
    return Table(
        title="What feasibility costs",
        header=(
            "setting",
            "noisy input",
            METHOD_NAMES["erm"],
            METHOD_NAMES["constrained"],
            "cost %",
            "feasible",
            "worst margin %",
            "seconds",
        ),
        rows=tuple(rows),
        note="RMSE (0-255) at the training gamma, mean over seeds; cost: constrained over plain. "
        "Seconds of training: plain / constrained.",
    )


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Fixed decimals, a dash for what is not a number; never a negative zero."""
    if not np.isfinite(value):
        return "-"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def _rmse_column(variant: Variant) -> list[str]:
    rmse = variant.scores()
    means = [number(value, 2) for value in rmse.mean(0)]
    if len(variant.runs) == 1:
        return means
    ranges = zip(means, rmse.min(0), rmse.max(0), strict=True)
    return [f"{mean} [{number(low, 2)}, {number(high, 2)}]" for mean, low, high in ranges]


def with_seeds(variant: Variant) -> str:
    """A variant's title, and how many seeds it has where there are several."""
    seeds = len(variant.runs)
    return variant.title + (f", {seeds} seeds" if seeds > 1 else "")


def set_apart(own: Variant | None, plain: Variant | None) -> str:
    """What sets a row of two variants apart from others of the setting; nothing where there are no others."""
    if own is None:
        return f", {plain.title}" if plain and plain.label else ""
    words = f", {own.label}" if own.label else ""
    return words + (f" against {plain.title}" if plain and plain.label else "")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
    cells[0] = f"{row[0]:<{widths[0]}}"
    return "  ".join(cells).rstrip()
