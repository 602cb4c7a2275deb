"""`unroll-jax generate` of runs: their weights and template."""

import json

import jax
import numpy as np
import pytest

from tests.train.commands import quiet
from unroll_jax.models import generate
from unroll_jax.train import load
from unroll_jax.train.__main__ import main

pytestmark = pytest.mark.xdist_group("language")
ROWS = [
    {"instruction": "Say bado."},
    {"instruction": "Add 1 and 2."},
    {"instruction": "Say mi twice."},
]


def test_a_run_answers_with_its_best_weights_by_seed(finished, tmp_path):
    prompts, out = tmp_path / "prompts.json", tmp_path / "answers.json"
    prompts.write_text(json.dumps(ROWS))
    words = f"generate {finished} --prompts {prompts} --out {out} --max-tokens 5"
    words += " --batch 2 --temperature 1 --gamma 0.5 --seed 3"
    assert main(words.split()) == 0
    rows = json.loads(out.read_text())
    assert [row["instruction"] for row in rows] == [row["instruction"] for row in ROWS]
    assert {row["generator"] for row in rows} == {"constrained-gamma0.5"}
    model = load(finished, log=quiet)
    source = model.task.inner.data.source
    config, tokenizer = source.config, source.tokenizer
    # of the first batch: the same program
    texts = [f"<|user|>{row['instruction']}<|end|><|assistant|>" for row in ROWS[:2]]
    questions = tokenizer.encode(texts)
    options = {
        "max_tokens": 5,
        "stops": tokenizer.stops,
        "dtype": "float32",
        "temperature": 1.0,
        "noise": 0.5,
    }
    # of the seed and the place of the prompt
    at = jax.vmap(lambda place: jax.random.fold_in(jax.random.key(3), place))
    key = jax.jit(at)(np.arange(2))
    answers = jax.device_get(
        generate(config, model.params["decoder"], questions, key=key, **options)
    )
    for row, tokens, length, stopped in zip(rows, *answers[:3], strict=False):
        kept = tokens[: int(length) - bool(stopped)]
        assert row["output"] == tokenizer.decode(kept, special=False).strip()
