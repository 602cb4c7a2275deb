"""Few of the built-in instructions, a decoder that compiles in a second, and runs of
it."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from tests.data.decoders.conftest import llama_tensors, write_llama
from tests.models import decoder_reference as reference
from tests.tasks import without_report
from tests.train.commands import quiet
from unroll_jax.train.config.options import with_value
from unroll_jax.train.core.task import Task
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.language.options import (
    DecoderOptions,
    InstructionConfig,
    LanguageConfig,
)
from unroll_jax.train.tasks.language.task import open_task

TINY = DecoderOptions(
    dim=8, num_layers=3, num_heads=2, num_key_value_heads=1, hidden_dim=12
)
SIZES = {"train_examples": 40, "validation_examples": 12, "test_examples": 12}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LanguageConfig]:
    prepared = str(tmp_path_factory.mktemp("prepared"))

    def make(**fields: Any) -> LanguageConfig:
        usual = {
            "steps": 4,
            "batch_size": 4,
            "validate_every": 2,
            "max_length": 64,
            "test_gammas": (0.0, 1.0),
            **SIZES,
        }
        usual |= {"model": TINY, "data": InstructionConfig(prepared=prepared)}
        default = EXPERIMENTS["sft-tiny"].config
        assert isinstance(default, LanguageConfig)
        config = dataclasses.replace(default, **{**usual, **fields})
        config.check()
        return config

    return make


@pytest.fixture(scope="session")
def task_of(small: Callable[..., LanguageConfig]) -> Callable[..., Task]:
    return functools.cache(lambda **fields: open_task(small(**fields), quiet))


def wide(params: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def given_in(
    root: Path, small: Callable[..., LanguageConfig], **options: Any
) -> tuple[Any, Path]:
    """``make(**fields)``, a configuration of low-rank changes of the decoder in a
    folder below, and this folder."""
    folder, file = write_llama(root, **options), root / "given.jsonl"
    lines = [{"prompt": f"{n}?", "answer": "ab" * (1 + n % 3)} for n in range(40)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = InstructionConfig("alpaca", str(file), str(root / "prepared"))
    whole = {f"{split}_examples": None for split in ("train", "validation", "test")}

    def make(**fields):
        usual = {
            "data": data,
            "model": DecoderOptions(pretrained=str(folder), lora_rank=2),
            "max_length": 32,
            **whole,
        }
        return small(
            **{**usual, "batch_size": 2, "steps": 2, "method": "plain", **fields}
        )

    return make, folder


@pytest.fixture
def given(small: Callable[..., LanguageConfig], tmp_path: Path) -> tuple[Any, Path]:
    return given_in(tmp_path, small)


@pytest.fixture(scope="session")
def run_of(
    small: Callable[..., LanguageConfig], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """``run_of(kind)``: a run from a given decoder, "changes merged" or "tied,
    Alpaca", and the decoder's folder."""

    @functools.cache
    def train(kind: str) -> tuple[Path, Path]:
        root, tensors = tmp_path_factory.mktemp("given"), llama_tensors()
        tied = kind == "tied, Alpaca"
        if tied:
            del tensors["lm_head.weight"]
        config = {"max_position_embeddings": 400, "tie_word_embeddings": tied}
        make, folder = given_in(root, small, config=config, tensors=tensors)
        options = with_value(make(), "primal.learning_rate", 0.1)
        if tied:
            model = DecoderOptions(pretrained=str(folder))
            options = make(model=model, template="alpaca", max_length=256)
        with pytest.MonkeyPatch.context() as patch:
            without_report(patch)
            (run,) = fit(options, out=root / "run", experiment="sft-tiny", log=quiet)
        return run, folder

    return train


@pytest.fixture(scope="session")
def finished(
    small: Callable[..., LanguageConfig], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("runs") / "constrained"
    config = small(method="constrained")
    (run,) = fit(config, out=out, experiment="sft-tiny", log=quiet)
    return run


def answer_logs(
    decoder: Any, config: Any, tokens: np.ndarray, first: int
) -> np.ndarray:
    """Log-probabilities of all words at an answer's tokens, (L + 1, tokens, words),
    of one text, in float64."""
    states = reference.outputs(decoder, tokens, config)
    logits = reference.logits(decoder, states, config)
    return log_softmax(logits, axis=-1)[:, first - 1 : -1]
