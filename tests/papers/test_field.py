"""The study of published layers: does it descend?"""

import numpy as np
import pytest

from papers.field import DEPTH, plot, study, table


@pytest.mark.nightly
def test_proved_steps_descend_and_public_ones_do_not():
    rows = [
        row
        for name in ("CRATE, public code", "softmax attention")
        for row in study(name, 2)
    ]
    assert [row.falls.shape for row in rows] == [(DEPTH,)] * 4
    assert all(np.mean(row.falls) < 0.5 for row in rows[:2])
    assert all(
        np.all(row.falls == 1.0) and np.all(row.uphill == 0.0) for row in rows[2:]
    )
    assert [np.mean(row.guaranteed) for row in rows] == [0.0, 0.0, 1.0, 1.0]
    lines = table(rows, 0.375).splitlines()
    assert lines[3].startswith(
        "| softmax attention | 100% | 100% | 100% | 100% | 0% | 0% |"
    )
    # of the first layer as drawn: guaranteed, descending, rising
    bars = plot(rows).axes[0].patches
    np.testing.assert_allclose(
        [bar.get_height() for bar in bars[::DEPTH]],
        [0.0, 100.0 * rows[0].falls[0], 100.0 * (1.0 - rows[0].falls[0])],
    )
