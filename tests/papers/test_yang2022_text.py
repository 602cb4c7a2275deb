"""Figs. 5 and 6: the energies of a text against the equations in NumPy, and the
pipeline on a few made-up sentences."""

import functools
import json

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from papers.yang2022 import figures
from papers.yang2022.__main__ import main
from papers.yang2022.energies import (
    COMPONENTS,
    LayerEnergies,
    Stack,
    init_network,
    layer_energies,
    train_network,
)
from papers.yang2022.energy_plots import layer_numbers, moves
from papers.yang2022.sentences import Sentence
from tests.data.conftest import write
from tests.reference import (
    feedforward_energy,
    feedforward_step,
    pair_energy,
    pair_step,
)

pytestmark = pytest.mark.nightly
DIM, LAYERS = 4, 3
NAMES = ("fig5", "fig6", "fig6_plain")
PARTS = ("pairs", "residual", "features")
STACKS = {
    "plain": Stack(DIM, LAYERS),
    "residual": Stack(DIM, LAYERS, residual=True),
    "damped": Stack(DIM, LAYERS, residual=True, attention_step_size=0.3, step_size=0.2),
}


WORDS = np.random.default_rng(0).normal(size=(50, DIM)).astype(np.float32)


def sentences(*lengths):
    ends = np.cumsum(lengths)
    return [
        Sentence(np.arange(end - n, end, dtype=np.int32), i % 2)
        for i, (n, end) in enumerate(zip(lengths, ends, strict=True))
    ]


@functools.cache
def started(stack):
    return jax.jit(lambda: init_network(stack, 2, WORDS, seed=0))()


def weights_of(network):
    return [
        np.asarray(leaf, np.float64)
        for leaf in (network.layer.W_a, network.layer.W_f, network.layer.row)
    ]


def energies_of(Y, X, network, *, residual):
    W_a, W_f, B = weights_of(network)
    pairs = pair_energy(Y, W_a=W_a)
    pull = pair_energy(Y, W_a=W_a, ridge=1.0, anchor=X if residual else None) - pairs
    return {
        "pairs": pairs,
        "residual": pull * residual,
        "features": feedforward_energy(Y, W_f, B),
        "paper": pull * (not residual),
    }


def states_of(X, network, stack):
    W_a, W_f, B = weights_of(network)
    options = {"ridge": float(stack.residual), "step_size": stack.attention_step_size}
    relu = lambda y, step_size: np.maximum(y, 0.0)
    states = [X]
    for _ in range(stack.num_layers):
        U = pair_step(states[-1], form="softmax", anchor=X, W_a=W_a, **options)
        step = feedforward_step(U, W_f, B, step_size=stack.step_size, prox=relu)
        states.append(step)
    return states


@pytest.mark.parametrize(
    ("name", "lengths"),
    [("plain", (1, 2, 9, 16, 17)), ("residual", (1, 2, 16)), ("damped", (1, 9, 16))],
)
def test_energies_equal_the_equations_at_every_layer(name, lengths):
    stack = STACKS[name]
    network, texts = started(stack), sentences(*lengths)
    measured = layer_energies(stack, network, texts)
    for number, text in enumerate(texts):
        X = WORDS[text.words].astype(np.float64)
        states = states_of(X, network, stack)
        for layer, Y in enumerate(states):
            expected = energies_of(Y, X, network, residual=stack.residual)
            for part in COMPONENTS:
                actual = measured.components[part][number, layer]
                close = pytest.approx(expected[part], rel=1e-10, abs=1e-10)
                assert actual == close, (part, number, layer)
            total = sum(expected[part] for part in PARTS)
            assert measured.total[number, layer] == pytest.approx(total, rel=1e-10)
            assert measured.infinite[number, layer] == (Y < 0).any()
        logits = states[-1].mean(0) @ np.asarray(
            network.classifier.weights
        ) + np.asarray(network.classifier.bias)
        assert_allclose(measured.logits[number], logits, rtol=1e-9)
        for layer, Y in enumerate(states if len(X) > 1 else []):
            unit = Y / np.maximum(np.linalg.norm(Y, axis=1, keepdims=True), 1e-300)
            cosine = np.mean((unit @ unit.T)[np.triu_indices(len(Y), 1)])
            assert measured.cosine[number, layer] == pytest.approx(cosine, abs=1e-9)
    assert measured.lengths.tolist() == list(lengths)


def test_the_first_step_of_a_batch_follows_its_mean():
    stack = Stack(DIM, 2)
    network, texts = started(stack), sentences(7, 3)
    logits = layer_energies(stack, network, texts).logits
    trained, _ = train_network(stack, network, [texts], learning_rate=0.5)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    slope = np.mean(chances - np.eye(2), axis=0)
    assert_allclose(trained.classifier.bias, -0.5 * slope, rtol=1e-4)


def test_every_step_falls_stands_or_rises():
    features = np.array([[10.0, 5.0, 5.0, 6.0], [1e4, 1e4 + 5e-10, 1e4 - 1e-8, 1e4]])
    nothing = np.zeros_like(features)
    components = {
        "pairs": nothing,
        "residual": nothing,
        "features": features,
        "paper": nothing,
    }
    measured = LayerEnergies(
        components,
        nothing > 0,
        nothing,
        np.array([2, 5]),
        np.eye(2),
        np.array([0, 0]),
    )
    outcome = moves(measured)
    assert outcome["falls"].tolist() == [[True, False, False], [False, True, False]]
    assert outcome["stands"].tolist() == [[False, True, False], [True, False, False]]
    assert outcome["rises"].tolist() == [[False, False, True], [False, False, True]]
    numbers = layer_numbers(measured)
    assert numbers["share_of_text_layer_pairs"] == pytest.approx(
        {"falls": 2 / 6, "stands": 2 / 6, "rises": 2 / 6}
    )
    assert numbers["mean_energy_per_word"][0] == (10.0 / 2 + 1e4 / 5) / 2
    assert numbers["share_of_labels_predicted"] == 0.5


@pytest.fixture
def root(tmp_path):
    words = ["a", "dull", "fine", "slow", "film", "story", "and", "."]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, size)) for size in (3, 5, 8, 12, 4) * 4]
    table = "sentence\tlabel\n" + "".join(
        f"{text}\t{i % 2}\n" for i, text in enumerate(texts)
    )
    files = {f"glue/SST-2/{split}.tsv": table for split in ("train", "dev", "test")}
    for i, text in enumerate(texts):
        name = f"pos/{i}_9.txt" if i % 2 else f"neg/{i}_1.txt"
        files |= {f"imdb/aclImdb/{split}/{name}": text for split in ("train", "test")}
    lines = [
        f"{word} {' '.join(map(str, generator.normal(size=DIM)))}"
        for word in words[:-1]
    ]
    return write(tmp_path, files | {"vectors.txt": "\n".join(lines)})


def test_figures_5_and_6_are_drawn_from_texts(root, monkeypatch):
    monkeypatch.setattr(figures, "DPI", 30)
    words = "--num-texts 3 --steps 4 --num-layers 2 --only 5,6"
    words += f" --data.root {root} --data.prepared {root}/prepared --out {root}/out"
    assert main([*words.split(), "--embeddings", str(root / "vectors.txt")]) == 0
    for name in NAMES:
        assert (root / "out" / f"{name}.png").exists()
        numbers = json.loads((root / "out" / f"{name}.json").read_text())
        for values in numbers.values():
            assert np.array(values["energy"]).shape == (3, 3)
            parts = [values["components"][part] for part in PARTS]
            total = np.sum(parts, axis=0)
            assert_allclose(values["energy"], total, rtol=1e-6)
            has_residual = np.any(values["components"]["residual"])
            assert has_residual == (name == "fig6")
