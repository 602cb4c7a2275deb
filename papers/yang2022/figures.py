"""Figs. 1 to 6 of Yang, Huang, Wipf (2022): pictures, and JSON files of numbers."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from papers.yang2022.config import NUMBERS, FiguresConfig, check_figures, chosen
from papers.yang2022.energies import (
    Network,
    Stack,
    init_network,
    layer_energies,
    train_network,
)
from papers.yang2022.energy_plots import (
    component_picture,
    energy_picture,
    layer_numbers,
    rho_picture,
)
from papers.yang2022.sentences import Sentence, as_numbers, choose, words_of
from papers.yang2022.synthetic_plots import (
    Drawing,
    draw_descent_regions,
    draw_energy_and_trace,
    draw_proximal_regions,
)
from papers.yang2022.vectors import Embeddings, glove_embeddings
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.words import tokenise
from unroll_jax.train.system.files import check_out, expanded
from unroll_jax.train.tasks.text.data import TextBatch, TextConfig, load

DPI = 110
DATA_SETS: tuple[Literal["sst2", "imdb"], ...] = ("sst2", "imdb")
OTHER_RHOS = ("log", "power", "truncated_quadratic")
RECIPE = (
    "Figs. 5 and 6 need real text: put SST-2 as FOLDER/glue/SST-2/{train,dev,test}.tsv"
    " and the unpacked IMDB reviews as FOLDER/imdb/aclImdb, and add --data.root FOLDER"
)

Log = Callable[[str], None]


class Corpus(NamedTuple):
    """The texts of one data set."""

    test: list[Sentence]
    train: Callable[[], Iterator[list[Sentence]]]  # batches
    num_classes: int
    words: np.ndarray  # vectors, (vocabulary, d)
    coverage: float  # share of the test words in the embedding file


def draw(config: FiguresConfig, *, log: Log = print) -> None:
    """Draws the figures that a config asks for.

    Raises:
      UserError: if an option, a text or an embedding file cannot be used, or the folder
        cannot be written.
    """
    check_figures(config)
    out = check_out(config.out)
    numbers = chosen(config)
    if {5, 6} & set(numbers) and not config.data.root:
        raise UserError(RECIPE)
    start = time.monotonic()
    for name, (figure, values) in _drawings(config, numbers, log):
        _save(out, name, figure, values)
        log(f"{time.monotonic() - start:6.1f} s  {out / name}.png, {name}.json")
    if numbers == NUMBERS[:4] and not config.only:
        log(RECIPE)


def _drawings(
    config: FiguresConfig, numbers: tuple[int, ...], log: Log
) -> Iterator[tuple[str, Drawing]]:
    if 1 in numbers:
        yield "fig1", draw_descent_regions(config)
    if {2, 3} & set(numbers):
        both = zip((2, 3), draw_energy_and_trace(config), strict=True)
        yield from (
            (f"fig{number}", drawing) for number, drawing in both if number in numbers
        )
    if 4 in numbers:
        yield "fig4", draw_proximal_regions(config)
    if {5, 6} & set(numbers):
        names = DATA_SETS if config.texts == "both" else (config.texts,)
        corpora = {name: _corpus(name, config, numbers, log) for name in names}
        if 5 in numbers:
            yield from _random_weights(config, corpora)
        if 6 in numbers:
            yield from _trained_weights(config, corpora, log, residual=True)
            yield from _trained_weights(config, corpora, log, residual=False)


def _random_weights(
    config: FiguresConfig, corpora: dict[str, Corpus]
) -> Iterator[tuple[str, Drawing]]:
    """Fig. 5, its components, and the same for other rho."""
    energies = {}
    for name, corpus in corpora.items():
        stack = _stack(config, corpus, residual=False)
        network = _start(stack, corpus, config)
        for rho in ("softmax", *OTHER_RHOS):
            measured = layer_energies(stack._replace(rho=rho), network, corpus.test)
            energies.setdefault(rho, {})[name] = measured
    softmax = energies.pop("softmax")
    facts = {
        name: {**_facts(corpus), **layer_numbers(softmax[name])}
        for name, corpus in corpora.items()
    }
    title = f"Fig. 5: energy of real texts, random weights ({_lengths(config)})"
    yield "fig5", (energy_picture(title, softmax), facts)
    title = "Fig. 5 by component: random weights, mean over texts"
    yield "fig5_components", (component_picture(title, softmax), _means(facts))
    by_data = {}
    values = {}
    for name in corpora:
        by_data[name] = {rho: energies[rho][name] for rho in OTHER_RHOS}
        values[name] = {rho: layer_numbers(by_data[name][rho]) for rho in OTHER_RHOS}
    title = "Fig. 5 for other ρ: attention weights other than softmax's"
    yield "fig5_rhos", (rho_picture(title, by_data), values)


def _trained_weights(
    config: FiguresConfig, corpora: dict[str, Corpus], log: Log, *, residual: bool
) -> Iterator[tuple[str, Drawing]]:
    """Fig. 6 and its components.

    With the residual term, as in the paper's text, or without, as in its code.
    """
    energies = {}
    facts = {}
    kept: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "optimizer": config.optimizer,
        "train_words": config.train_words,
    }
    for name, corpus in corpora.items():
        start = time.monotonic()
        stack = _stack(config, corpus, residual=residual)._replace(rho=config.rho)
        network = _start(stack, corpus, config)
        network, losses = train_network(stack, network, corpus.train(), **kept)
        seconds = time.monotonic() - start
        log(f"  {name}: {len(losses)} training steps in {seconds:.1f} s")
        energies[name] = layer_energies(stack, network, corpus.test)
        facts[name] = {
            **_facts(corpus),
            **layer_numbers(energies[name]),
            **_training(losses, network.layer.W_f),
        }
    name = "fig6_plain"
    kind = "without residual term"
    if residual:
        name = "fig6"
        kind = "with the residual term ½|(Y − X) W$_a$|²"
    steps = f"{config.steps} training steps"
    title = f"Fig. 6: energy of real texts after {steps},\n{kind} ({_lengths(config)})"
    yield name, (energy_picture(title, energies), facts)
    title = f"Fig. 6 by component: after {steps}, {kind}; mean over texts"
    yield f"{name}_components", (component_picture(title, energies), _means(facts))


def _stack(config: FiguresConfig, corpus: Corpus, *, residual: bool) -> Stack:
    return Stack(
        corpus.words.shape[1],
        config.num_layers,
        residual,
        attention_step_size=config.attention_step_size,
        step_size=config.feedforward_step_size,
    )


def _start(stack: Stack, corpus: Corpus, config: FiguresConfig) -> Network:
    return init_network(stack, corpus.num_classes, corpus.words, seed=config.seed)


def _lengths(config: FiguresConfig) -> str:
    return (
        f"steps of attention {config.attention_step_size:g}, of feed-forward"
        f" {config.feedforward_step_size:g}"
    )


def _corpus(
    name: Literal["sst2", "imdb"],
    config: FiguresConfig,
    numbers: tuple[int, ...],
    log: Log,
) -> Corpus:
    data = load(TextConfig(name, config.data.root, config.data.prepared), log=log)

    def read(split: Literal["train", "test"], count: int) -> TextBatch:
        chosen = choose(data.num_examples(split), count, seed=config.seed)
        return data.read(split, chosen)

    test = read("test", config.num_texts)
    size = config.batch_size
    train = read("train", size * config.steps if 6 in numbers else 0)
    vocabulary = words_of([test, train])
    embeddings = _embeddings(config, set(vocabulary))
    words = itertools.chain.from_iterable(map(tokenise, test.texts))

    def batches() -> Iterator[list[Sentence]]:
        for start in range(0, len(train.texts), size):
            part = slice(start, start + size)
            some = TextBatch(train.texts[part], train.labels[part])
            yield as_numbers(some, vocabulary)

    return Corpus(
        as_numbers(test, vocabulary),
        batches,
        len(data.class_names),
        embeddings(list(vocabulary)),
        float(np.mean([embeddings.covers(word) for word in words])),
    )


def _embeddings(config: FiguresConfig, words: set[str]) -> Embeddings:
    if config.embeddings is None:
        return Embeddings(config.embedding_dim, {}, length=1.0)
    return glove_embeddings(expanded(config.embeddings, "embeddings"), words)


def _facts(corpus: Corpus) -> dict[str, Any]:
    return {
        "dim": corpus.words.shape[1],
        "share_of_words_in_embedding_file": corpus.coverage,
    }


def _training(losses: np.ndarray, W_f: Any) -> dict[str, Any]:
    tenth = max(1, len(losses) // 10)
    values = np.linalg.eigvalsh(np.asarray(W_f))
    return {
        "mean_loss_of_first_tenth": float(losses[:tenth].mean()),
        "mean_loss_of_last_tenth": float(losses[-tenth:].mean()),
        "spectrum_of_W_f": [float(values[0]), float(values[-1])],
        "loss": losses.tolist(),
    }


def _means(facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    names = ("dim", "mean_energy_per_word", "mean_component_per_word")
    return {name: {key: values[key] for key in names} for name, values in facts.items()}


def _save(out: Path, name: str, figure: Figure, values: dict[str, Any]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        figure.savefig(out / f"{name}.png", dpi=DPI)
        (out / f"{name}.json").write_text(json.dumps(values) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write --out {out} ({error.strerror or error}); name another folder"
        ) from error
