"""Completions of a few prompts of the test split by a language model, without and with noise on all embeddings."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from unroll_jax.models import generate

from ..data.packing import PackedData
from ..task import Params, Row
from .common import NOISE_SEED
from .language_model import LanguageModel


def completions(
    model: LanguageModel,
    params: Params,
    packed: PackedData,
    deviations: Mapping[float, float],
    *,
    count: int,
    tokens: int,
) -> list[Row]:
    """Greedy answers to the first prompts of the test split, beside what the data have; JSON values.

    Args:
      model: the decoder.
      params: its parameters.
      packed: the splits.
      deviations: standard deviation of the noise, by gamma; it is the same for every run.
      count: of prompts, or all where there are fewer.
      tokens: of the longest answer, where the context has room for as many.
    """
    if count == 0 or jax.process_count() > 1:  # which answer together, and would have to agree on every token
        return []
    config, tokenizer = model.given.config, model.given.tokenizer
    texts = [packed.text("test", number) for number in range(min(count, packed.texts["test"]))]
    prompts = [text.tokens[: text.first] for text in texts]
    keys = jax.vmap(lambda place: jax.random.fold_in(jax.random.key(NOISE_SEED), place))(np.arange(len(texts)))
    options: dict[str, Any] = {
        "max_tokens": min(tokens, config.max_positions - max(map(len, prompts))),
        "stops": tokenizer.stops,
        "key": keys,
        "dtype": model.module.dtype,
    }
    decoder = model.decoder(params)
    rows: list[Row] = [
        {"prompt": _text(tokenizer, prompt), "wanted": _text(tokenizer, text.tokens[text.first :]), "answers": {}}
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    for gamma, deviation in deviations.items():
        generated = jax.device_get(generate(config, decoder, prompts, noise=deviation, **options))
        for row, answer, length in zip(rows, generated.tokens, generated.lengths, strict=True):
            row["answers"][str(gamma)] = _text(tokenizer, answer[:length])
    return rows


def _text(tokenizer: Any, tokens: np.ndarray) -> str:
    return tokenizer.decode(tokens, special=False).strip()
