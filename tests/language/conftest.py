"""Few of the built-in instructions, a decoder that compiles in a second, and runs of it."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.data.decoders.conftest import WriteFolder, write_folder
from tests.models import decoder_reference as reference
from unroll_jax.train import load
from unroll_jax.train.config.data import InstructionConfig
from unroll_jax.train.config.tokens import DecoderOptions, LanguageConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.language import LanguageTask

__all__ = ["write_folder"]
TINY = DecoderOptions(dim=8, num_layers=3, num_heads=2, num_key_value_heads=1, hidden_dim=12)
SIZES = {"train_examples": 40, "validation_examples": 12, "test_examples": 12}


class Finished(NamedTuple):
    folders: list[Path]
    report: Path
    log: list[str]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LanguageConfig]:
    prepared = str(tmp_path_factory.mktemp("prepared"))

    def make(**fields: Any) -> LanguageConfig:
        usual = {"steps": 4, "batch_size": 4, "validate_every": 2, "max_length": 64, "test_gammas": (0.0, 1.0), **SIZES}
        usual |= {"model": TINY, "data": InstructionConfig(prepared=prepared)}
        default = EXPERIMENTS["sft-tiny"].config
        assert isinstance(default, LanguageConfig)
        config = dataclasses.replace(default, **{**usual, **fields})
        config.check()
        return config

    return make


@pytest.fixture(scope="session")
def task_of(small: Callable[..., LanguageConfig]) -> Callable[..., LanguageTask]:
    return functools.cache(lambda **fields: LanguageTask.open(small(**fields), lambda line: None))


@pytest.fixture(scope="session")
def wide() -> Callable[[Any], Any]:
    return lambda params: jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.fixture
def given(small: Callable[..., LanguageConfig], write_folder: WriteFolder, tmp_path: Path) -> tuple[Any, Path]:
    folder, file = write_folder(), tmp_path / "given.jsonl"
    lines = [{"prompt": f"{n}?", "answer": "ab" * (1 + n % 3)} for n in range(40)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = InstructionConfig("alpaca", str(file), str(tmp_path / "prepared"))
    whole = {f"{split}_examples": None for split in ("train", "validation", "test")}

    def make(**fields):
        usual = {"data": data, "model": DecoderOptions(pretrained=str(folder), lora_rank=2), "max_length": 32, **whole}
        return small(**{**usual, "batch_size": 2, "steps": 2, "method": "plain", **fields})

    return make, folder


@pytest.fixture(scope="session")
def finished(small: Callable[..., LanguageConfig], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root, log = tmp_path_factory.mktemp("runs"), []
    return Finished(fit(small(method="both"), out=root, experiment="sft-tiny", log=log.append), root / "report", log)


def answer_losses(decoder: Any, config: Any, tokens: np.ndarray, first: int) -> np.ndarray:
    """Cross entropies of an answer's tokens at all layers, (L + 1, tokens), of one text, in float64."""
    logs = answer_logs(decoder, config, tokens, first)
    return -logs[:, np.arange(logs.shape[1]), tokens[first:]]


def answer_logs(decoder: Any, config: Any, tokens: np.ndarray, first: int) -> np.ndarray:
    """Log-probabilities of all words at an answer's tokens, (L + 1, tokens, words), likewise."""
    logits = reference.logits(decoder, reference.outputs(decoder, tokens, config), config)
    logs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logs -= logits.max(-1, keepdims=True)
    return logs[:, first - 1 : -1]


@pytest.fixture
def layers_of(finished: Finished, wide: Callable[[Any], Any]) -> Callable[[str, str], tuple[np.ndarray, Any, Any]]:
    model = load(finished.folders[1], log=lambda line: None)
    decoder, given = wide(jax.device_get(model.params["decoder"])), model.task.model.source

    def logs(prompt, answer):
        start = f"<|user|>{prompt}<|end|><|assistant|>"
        first, tokens = (given.tokenizer.encode([text])[0] for text in (start, f"{start}{answer}<|end|>"))
        return answer_logs(decoder, given.config, tokens, len(first)), tokens[len(first) :], given.tokenizer

    return logs
