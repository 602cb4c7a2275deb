"""`unroll-jax generate` of runs: their weights and template."""

import json

import jax
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
    questions = tokenizer.encode(["<|user|>Say bado.<|end|><|assistant|>"])
    options = {
        "max_tokens": 5,
        "stops": tokenizer.stops,
        "dtype": "float32",
        "temperature": 1.0,
        "noise": 0.5,
    }
    # of the seed and the place of the prompt
    key = jax.jit(lambda: jax.random.fold_in(jax.random.key(3), 0)[None])()
    answers = jax.device_get(
        generate(config, model.params["decoder"], questions, key=key, **options)
    )
    kept = answers.tokens[0][: int(answers.lengths[0]) - bool(answers.stopped[0])]
    assert rows[0]["output"] == tokenizer.decode(kept, special=False).strip()
