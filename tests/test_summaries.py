"""Short summaries of traces, certificates and multipliers, and their pictures."""

import sys

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.reference import compiled

matplotlib.use("agg")


def descent_by(factors):
    energy = lambda params, y, x=None: jnp.sum(y**2, axis=-1)
    return uj.Descent(lambda key: None, energy, lambda params, y, x=None: factors * y)


@pytest.fixture(scope="module")
def records():
    falling, states = descent_by(0.9), np.ones((8, 3), np.float32)
    rising = descent_by(np.where(np.arange(8) < 2, 1.2, 0.9).astype("float32")[:, None])

    @compiled
    def run(states):
        trace = uj.unroll(falling, None, states, num_layers=3)[1]
        assert repr(trace) == "Trace\n  energy: (4, 8)", "traced records print shapes"
        return {
            "trace": trace,
            "one": uj.unroll(falling, None, states[0], num_layers=2)[1],
            "descends": uj.certify(falling, None, states, num_layers=3),
            "rises": uj.certify(rising, None, states, num_layers=6),
        }

    return run(states)


def test_a_record_prints_the_layers_whose_energy_rises(records):
    for name, words in {
        "trace": ("Trace", "3 layers", "8 examples", "rises: none"),
        "one": ("Trace", "2 layers", "1 example", "rises: none"),
        "descends": (
            "Certificate",
            "3 layers",
            "8 examples",
            "guaranteed 0.0%",
            "descended 100.0%",
            "rose 0.0%",
        ),
        "rises": (
            "Certificate",
            "6 layers",
            "descended 75.0%",
            "rose 25.0%",
            "layer 4 (25.0%) and 2 more",
        ),
    }.items():
        printed = repr(records[name])
        assert len(printed.splitlines()) <= 6
        assert [word for word in words if word not in printed] == []


def test_multipliers_print_counts_and_shapes_once_donated():
    ascent = uj.dual_ascent(optax.sgd(0.5))
    state = jax.jit(ascent.update)(ascent.init(3), np.float32([0.2, -1.0, 3.0]))
    assert "2 of 3 not 0, largest 1.5" in repr(state)
    jax.tree.map(lambda leaf: leaf.delete(), state)
    assert "multipliers: (3,)" in repr(state)


def test_a_plot_without_matplotlib_names_the_extra(records, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"unroll_jax\[plot\]"):
        records["trace"].plot()


@pytest.mark.parametrize("name", ["one", "rises"])
def test_a_record_draws_a_line_by_layer(records, name):
    record = records[name]
    axes = record.plot()
    expected = np.median(np.reshape(record.energy, (len(record.energy), -1)), axis=1)
    assert_allclose(axes.lines[0].get_ydata(), expected, rtol=1e-6)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "energy")
    assert len([line for line in axes.lines if line.get_marker() == "x"]) == (
        name == "rises"
    )
    assert record.plot(axes) is axes
    matplotlib.pyplot.close("all")
