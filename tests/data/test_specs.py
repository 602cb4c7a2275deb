"""Specs: the properties of data that a model needs come back from JSON as they were."""

import json

import numpy as np
import pytest

from tests.data.pretrained.conftest import WORDS, word_tokenizer
from unroll_jax.models import EncoderConfig
from unroll_jax.train.data.codes import CodeSpec
from unroll_jax.train.data.pictures import ImageSpec
from unroll_jax.train.data.pretrained.chat import ChatTokenizer, byte_tokenizer
from unroll_jax.train.data.pretrained.encoders import EncoderTokenizer
from unroll_jax.train.data.tokens import TextSpec
from unroll_jax.train.data.video import VideoSpec
from unroll_jax.train.data.words import WordTokenizer

THIRDS = np.arange(1, 4, dtype=np.float32) / 3
ENCODER = EncoderTokenizer(word_tokenizer(WORDS), EncoderConfig(20, 8, 2, 2, 12, max_positions=8))
SPECS = {
    "video": VideoSpec(0.1 + 0.2, frame_side=160),
    "images": ImageSpec((4, 5, 3), ("a", "b"), THIRDS, THIRDS[::-1]),
    "codes": CodeSpec((1, 3, 1), np.stack([THIRDS, -THIRDS]), 1 / 3),
    "words": TextSpec(("bad", "good"), True, WordTokenizer(["film", "long"])),
    "tokens": TextSpec(("bad", "good"), False, ENCODER),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_comes_back_from_json_bit_for_bit(name):
    spec = SPECS[name]
    values = json.loads(json.dumps(spec.to_json()))
    again = type(spec).from_json(values)
    for field, one in spec._asdict().items():
        other = getattr(again, field)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(other, one)
            assert other.dtype == one.dtype
        elif field == "tokenizer":
            assert other.checksum == one.checksum
            np.testing.assert_array_equal(other.encode(["a long film"]).tokens, one.encode(["a long film"]).tokens)
        else:
            assert other == one
    with pytest.raises(TypeError, match="unknown"):
        type(spec).from_json(values | {"unknown": 1})


def test_a_chat_tokenizer_comes_back_from_json_with_its_template():
    made = byte_tokenizer()
    again = ChatTokenizer.from_spec(json.loads(json.dumps(made.to_spec())))
    assert (again.checksum, again.stops, again.where) == (made.checksum, made.stops, made.where)
