"""The study of published layers: does it descend?"""

import numpy as np
import pytest

from papers.field import DEPTH, study, table


@pytest.mark.nightly
def test_proved_steps_descend_and_public_ones_do_not():
    proved, public = (
        study(name, 2) for name in ("softmax attention", "CRATE, public code")
    )
    assert {row.falls.shape for row in (*proved, *public)} == {(DEPTH,)}
    assert all(np.mean(row.falls) < 0.5 for row in public)
    assert all(np.all(row.falls == 1.0) and not row.uphill.any() for row in proved)
    for rows, share in ((proved, 1.0), (public, 0.0)):
        assert {np.mean(row.guaranteed) for row in rows} == {share}
    assert "| softmax attention | 100% |" in table([*public, *proved], 0.375)
