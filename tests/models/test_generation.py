"""Answers equal full passes without a cache, in any batch; stops, buckets, and the
distribution of the next token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import in_float64, nightly
from tests.models import decoder_reference
from tests.models.drawing import drawn, float64
from tests.models.test_decoder import SMALL as DECODER
from tests.reference import compiled
from unroll_jax.models import (
    NO_TOKEN,
    Decoder,
    Sampling,
    generate,
    speculate,
)
from unroll_jax.models.language import generation
from unroll_jax.models.language.sampling import (
    Stream,
    log_probabilities,
    next_tokens,
    position_keys,
    position_noise,
    row_keys,
)

SMALL = dataclasses.replace(DECODER, max_positions=60)
UNTIED = dataclasses.replace(SMALL, tied=False)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [5]]
COUNT, SIZE = 6, 13  # tokens of an answer, and of the longest text with its answer


def small_params(seed=0, dtype=jnp.float32, config=SMALL):
    model = Decoder(config, param_dtype=dtype)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return drawn(model, tokens, scale=0.6, seed=seed)["params"]


def expected_answer(params, prompt, count, key=None, noise=0.0):
    """Tokens of full passes of the reference, without a cache."""
    weights = float64(params)
    text = list(prompt)
    added = np.zeros((SIZE, SMALL.dim))
    if key is not None:
        added = noise * np.asarray(
            position_noise(key[None], jnp.arange(SIZE)[None], SMALL.dim)[0], np.float64
        )
    for _ in range(count):
        state = decoder_reference.outputs(
            weights, text, SMALL, perturbation=added[: len(text)]
        )[-1, -1]
        text.append(int(np.argmax(decoder_reference.logits(weights, state, SMALL))))
    return text[len(prompt) :]


@nightly
@in_float64
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_greedy_answers_equal_those_of_full_passes(noise):
    """Noise is on the prompts and on the model's tokens. At a position it is the
    same in every pass."""
    params = small_params(dtype="float64")
    keys = row_keys(jax.random.key(5), 3)
    answers = generate(
        SMALL, params, PROMPTS, max_tokens=COUNT, noise=noise, key=jax.random.key(5)
    )
    for row, prompt in enumerate(PROMPTS):
        key = keys[row] if noise else None
        assert answers.tokens[row].tolist() == expected_answer(
            params, prompt, COUNT, key, noise
        )
    assert (answers.lengths.tolist(), answers.calls.tolist()) == (
        [COUNT] * 3,
        [COUNT - 1] * 3,
    )
    assert not answers.stopped.any()


def test_each_row_ends_with_its_first_stop():
    answer = functools.partial(
        generate, UNTIED, small_params(config=UNTIED), PROMPTS, max_tokens=COUNT
    )
    whole = np.asarray(answer(stops=[28]).tokens)
    assert not (whole == 28).any()
    stop = int(whole[1, 2])
    answers = jax.device_get(answer(stops=[stop]))
    for row, answer in enumerate(whole.tolist()):
        kept = answer[: answer.index(stop) + 1] if stop in answer else answer
        assert answers.tokens[row].tolist() == kept + [NO_TOKEN] * (COUNT - len(kept))
        assert answers.lengths[row] == len(kept)
        assert answers.stopped[row] == (stop in answer)
        assert answers.calls[row] == len(kept) - 1
    assert answers.lengths[1] <= 3


@nightly
def test_one_program_serves_a_bucket_of_lengths(
    monkeypatch,
):
    traced = []

    def watched(config, params, inputs, *args, decode=generation.decode, **options):
        traced.append(inputs.shape)
        return decode(config, params, inputs, *args, **options)

    monkeypatch.setattr(generation, "decode", watched)
    # a length of no other test
    params = small_params()
    options = {"max_tokens": 3, "key": jax.random.key(0)}
    for length in (3, 16, 17):
        generate(SMALL, params, [[1] * length], noise=0.1 * length, **options)
    assert traced == [(1, 16, 8), (1, 1, 8), (1, 32, 8), (1, 1, 8)]


def test_the_longest_prompt_that_has_room_is_answered():
    assert generate(
        SMALL, small_params(), [[3] * 57], max_tokens=3
    ).lengths.tolist() == [3]


DRAWN = {"max_tokens": 3, "temperature": 1.5, "noise": 0.3, "top_p": 0.95}
drafted = functools.partial(speculate, exit_layer=2, draft_length=2)


@nightly
def test_a_row_alone_is_drawn_as_in_a_batch():
    params, keys = small_params(), row_keys(jax.random.key(2, impl="rbg"), 2)
    for run in (generate, drafted):
        together = run(SMALL, params, PROMPTS[:2], key=keys, **DRAWN).tokens
        alone = run(SMALL, params, PROMPTS[1:2], key=keys[1:], **DRAWN).tokens
        assert_array_equal(alone[0], together[1])


@functools.cache
def pairs_of_keys():
    """Of the implementation for which JAX's own vmap draws by the first of a batch."""

    @jax.jit
    def pairs(key):
        keys = row_keys(key, 3)
        return keys[:2], keys[1::-1], keys[1:]

    return pairs(jax.random.key(2, impl="rbg"))


def test_a_row_is_drawn_by_its_own_key():
    first, reverse, others = pairs_of_keys()
    for run in (generate, drafted):
        answer = functools.partial(run, UNTIED, small_params(config=UNTIED), **DRAWN)
        together = np.asarray(answer(PROMPTS[:2], key=first).tokens)
        swapped = answer(PROMPTS[1::-1], key=reverse).tokens
        assert_array_equal(swapped, together[::-1])
        changed = np.asarray(answer(PROMPTS[:2], key=others).tokens)
        assert (changed != together).any(axis=1).all()


def test_every_key_gives_a_row_numbers_in_any_batch():

    @compiled
    def draw(key):
        keys = row_keys(key, 4)
        places = jnp.arange(3)[None]
        alone = lambda key: position_noise(key[None], places, 2)[0]
        together = position_noise(keys, jnp.tile(places, (4, 1)), 2)
        return together, jax.lax.map(alone, keys)

    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        together, alone = draw(jax.random.key(2, impl=impl))
        assert_array_equal(alone, together)
        assert len(np.unique(together)) == together.size


# of programs of the tests above
RUNS = {
    "greedy": lambda params, keys: generate(
        UNTIED, params, PROMPTS, max_tokens=COUNT, stops=[28]
    ),
    "sampled drafts": lambda params, keys: drafted(
        UNTIED, params, PROMPTS[:2], key=keys, **DRAWN
    ),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_logits_that_are_not_finite_are_an_error_or_marked(run):
    """Of the prompts that have the token 5."""
    params = jax.tree.map(np.array, small_params(config=UNTIED))
    params["embedding"][5] = np.nan
    given = params, pairs_of_keys()[0]
    answers = compiled(run)(*given)
    assert answers.failed.tolist() == [False, True, True][: len(answers.failed)]
    assert not answers.lengths[1:].any()
    assert np.all(answers.tokens[1:] == NO_TOKEN)
    assert answers.tokens[0].min() >= 0
    rows = ", ".join(map(str, np.flatnonzero(answers.failed)))
    words = f"params must give logits .* for prompts {rows}; look for NaN in params"
    with pytest.raises(ValueError, match=words):
        run(*given)


LOGITS = np.log([0.4, 0.1, 0.25, 0.2, 0.05])


def cut(shares, kept):
    shares = np.where(np.isin(np.arange(len(shares)), kept), shares, 0.0)
    return shares / shares.sum()


LIKELIEST = np.eye(5)[0]
# Each sampling, and its probabilities.
SAMPLINGS = [
    (Sampling(1.0), np.exp(LOGITS)),
    (Sampling(0.5), np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()),
    (Sampling(1.0, top_k=2), cut(np.exp(LOGITS), [0, 2])),
    (Sampling(1.0, top_k=9), np.exp(LOGITS)),
    (Sampling(1.0, top_p=0.7), cut(np.exp(LOGITS), [0, 2, 3])),
    (Sampling(1.0, top_p=1e-6), cut(np.exp(LOGITS), [0])),
    (Sampling(1.0, top_p=1.0), np.exp(LOGITS)),
    # shares of the three that top_k left
    (Sampling(1.0, top_k=3, top_p=0.7), cut(np.exp(LOGITS), [0, 2])),
    (Sampling(1e-30), LIKELIEST),
    (Sampling(1e-300), LIKELIEST),
]


def test_probabilities_are_sharpened_and_cut():
    """Small temperatures, or large logits, take the likeliest token."""
    logits = np.float32([LOGITS, LOGITS[::-1], 1e37 * LOGITS])

    @compiled
    def read(logits):
        return [log_probabilities(logits, s) for s, _ in SAMPLINGS]

    for logs, (sampling, shares) in zip(read(logits), SAMPLINGS, strict=True):
        expected = [shares, shares[::-1], LIKELIEST]
        near = 0.0 if shares is LIKELIEST else 1e-6
        assert_allclose(np.exp(logs), expected, atol=near, err_msg=str(sampling))


def test_tokens_are_drawn_with_their_probabilities():
    rows = 4000
    sampling = Sampling(1.0, top_k=4)

    @compiled
    def draw(key, logits):
        keys = row_keys(key, rows)
        numbers = [
            jax.random.uniform(
                position_keys(keys[:1], stream, jnp.zeros((1, 1), int))[0, 0]
            )
            for stream in Stream
        ]
        return next_tokens(logits, sampling, keys, jnp.zeros(rows, int)), numbers

    logits = np.tile(np.float32(LOGITS), (rows, 1))
    tokens, numbers = draw(jax.random.key(3), logits)
    expected = cut(np.exp(LOGITS), [0, 1, 2, 3])
    shares = np.bincount(tokens, minlength=5) / rows
    # four standard deviations at most
    assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / rows))
    assert shares[4] == 0.0
    assert len(np.unique(numbers)) == len(Stream)
