"""Answers equal full passes without a cache, in any batch; stops, buckets, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import decoder_reference
from tests.models.drawing import drawn, float64
from unroll_jax.models import NO_TOKEN, Decoder, DecoderConfig, generate
from unroll_jax.models.language import generation
from unroll_jax.models.language.sampling import position_noise, row_keys

SMALL = DecoderConfig(
    30, dim=8, num_layers=4, num_heads=4, num_key_value_heads=2, hidden_dim=12, max_positions=60, rotary_base=100.0
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [5]]
COUNT, SIZE = 6, 13  # tokens of an answer, and of the longest text with its answer


def small_params(seed=0, dtype=jnp.float32, config=SMALL):
    model = Decoder(config, param_dtype=dtype)
    return drawn(model, jax.ShapeDtypeStruct((1, 1), jnp.int32), scale=0.6, seed=seed)["params"]


def expected_answer(params, prompt, count, key=None, noise=0.0):
    """Tokens of full passes of the reference, without a cache."""
    weights, text, added = float64(params), list(prompt), np.zeros((SIZE, SMALL.dim))
    if key is not None:
        added = noise * np.asarray(position_noise(key[None], jnp.arange(SIZE)[None], SMALL.dim)[0], np.float64)
    for _ in range(count):
        state = decoder_reference.outputs(weights, text, SMALL, perturbation=added[: len(text)])[-1, -1]
        text.append(int(np.argmax(decoder_reference.logits(weights, state, SMALL))))
    return text[len(prompt) :]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_greedy_answers_equal_those_of_full_passes(noise):
    """Noise is on the prompts and on the model's tokens; at a position it is the same in every pass."""
    params, keys = small_params(dtype="float64"), row_keys(jax.random.key(5), 3)
    answers = generate(SMALL, params, PROMPTS, max_tokens=COUNT, noise=noise, key=jax.random.key(5))
    for row, prompt in enumerate(PROMPTS):
        key = keys[row] if noise else None
        assert answers.tokens[row].tolist() == expected_answer(params, prompt, COUNT, key, noise)
    assert (answers.lengths.tolist(), answers.calls.tolist()) == ([COUNT] * 3, [COUNT - 1] * 3)
    assert not answers.stopped.any()


@pytest.mark.slow
def test_a_random_answer_is_the_same_alone_and_in_a_batch():
    options = {"max_tokens": COUNT, "temperature": 1.5, "top_k": 20, "top_p": 0.95, "noise": 0.3}
    params, keys = small_params(), jax.random.split(jax.random.key(2), 3)
    together = generate(SMALL, params, PROMPTS, key=keys, **options)
    for row in (1, 2):
        alone = generate(SMALL, params, PROMPTS[row : row + 1], key=keys[row : row + 1], **options)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
    others = generate(SMALL, params, PROMPTS, key=jax.random.key(9), **options)
    assert (others.tokens != together.tokens).any(axis=1).all()


def test_each_row_ends_with_its_first_stop_and_no_row_waits_for_room():
    params = small_params()
    whole = np.asarray(generate(SMALL, params, PROMPTS, max_tokens=COUNT, stops=[29]).tokens)
    assert not (whole == 29).any()
    stop = int(whole[1, 2])
    answers = generate(SMALL, params, PROMPTS, max_tokens=COUNT, stops=[stop])
    for row, answer in enumerate(whole.tolist()):
        kept = answer[: answer.index(stop) + 1] if stop in answer else answer
        assert answers.tokens[row].tolist() == kept + [NO_TOKEN] * (COUNT - len(kept))
        assert (int(answers.lengths[row]), bool(answers.stopped[row])) == (len(kept), stop in answer)
        assert int(answers.calls[row]) == len(kept) - 1
    assert answers.lengths[1] <= 3


@pytest.mark.slow
def test_one_program_serves_a_bucket_of_lengths_and_every_strength_of_noise(monkeypatch):
    traced = []

    def watched(config, params, inputs, *args, decode=generation.decode, **options):
        traced.append(inputs.shape)
        return decode(config, params, inputs, *args, **options)

    monkeypatch.setattr(generation, "decode", watched)
    params, options = small_params(), {"max_tokens": 3, "key": jax.random.key(0)}  # a length of no other test
    for length in (3, 16, 17):
        generate(SMALL, params, [[1] * length], noise=0.1 * length, **options)
    assert traced == [(1, 16, 8), (1, 1, 8), (1, 32, 8), (1, 1, 8)]


def test_the_longest_prompt_that_has_room_is_answered():
    assert generate(SMALL, small_params(), [[3] * 57], max_tokens=3).lengths.tolist() == [3]
