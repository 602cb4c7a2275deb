"""What reports say and draw of early exit."""

import pytest

from unroll_jax.train.report.figures import early_exit
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.read import read_runs
from unroll_jax.train.report.tables import exit_table

pytestmark = [pytest.mark.xdist_group("text-runs"), pytest.mark.slow]


def test_early_exit_is_marked_as_its_legend_says(family):
    """Every mark in the panel is in the legend, in its colour and shape."""
    settings = group(read_runs([family("constrained", area=1.5), family("plain", area=1.4, method="erm")]))
    axes = early_exit(settings).axes[0]
    marked = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_linestyle() == "None"}
    handles, labels = axes.get_legend_handles_labels()
    legend = {(one.get_color(), one.get_marker()) for one, words in zip(handles, labels, strict=True) if ":" in words}
    assert len(marked) == 2
    assert legend == marked


@pytest.mark.parametrize(
    ("whole", "early_exit", "words"),
    [(3.0, 2.0, "1.50x faster"), (2.0, 3.0, "1.50x slower"), (2.0, 2.004, "as fast"), (2.0, 0.0, "-")],
)
def test_a_slowdown_is_not_called_a_gain(family, whole, early_exit, words):
    times = {"whole": whole, "by_layers": 1.0, "early_exit": early_exit, "depth": 1.0}
    table = exit_table(group(read_runs([family("run", area=1.5, early_exit__milliseconds=times)])))
    assert table.rows[0][-1] == words
    assert "gain" not in (*table.header, *table.note.lower().split())
