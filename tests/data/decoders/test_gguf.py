"""Decoders from GGUF files: rows in our order, dequantised, or a one-line error."""

import functools
import struct

import jax.numpy as jnp
import numpy as np
import pytest

from tests.data.decoders.conftest import TEMPLATE, byte_vocabulary
from tests.errors import assert_fails
from unroll_jax.models import DecoderConfig, RotaryScaling
from unroll_jax.train.data.pretrained.decoders import load_decoder

gguf = pytest.importorskip("gguf", reason="gguf, which reads quantised weights, is not installed")

DIM, HIDDEN, WORDS, SIZE = 32, 64, 259, 8
Q8_K = gguf.GGMLQuantizationType.Q8_K  # which the package cannot dequantise
HEADS = {"attn_q": 4, "attn_k": 2}
load = functools.partial(load_decoder, log=lambda line: None)
NUMBERS = {
    "context_length": 32,
    "embedding_length": DIM,
    "block_count": 2,
    "feed_forward_length": HIDDEN,
    "head_count": 4,
    "head_count_kv": 2,
    "layer_norm_rms_eps": 1e-5,
    "rope_freq_base": 100.0,
    "rope_dimension_count": SIZE,
}


def reads(file):
    return load(str(file))


def tensors():
    """Tensors in the order of `transformers`, by GGUF's names."""
    layer = {"attn_norm": (DIM,), "attn_q": (DIM, DIM), "attn_k": (16, DIM), "attn_v": (16, DIM)}
    layer |= {"attn_output": (DIM, DIM), "ffn_norm": (DIM,), "ffn_gate": (HIDDEN, DIM), "ffn_up": (HIDDEN, DIM)}
    layer["ffn_down"] = (DIM, HIDDEN)
    shapes = {"token_embd": (WORDS, DIM), "output_norm": (DIM,)}
    shapes |= {f"blk.{number}.{name}": shape for number in range(2) for name, shape in layer.items()}
    generator = np.random.default_rng(0)
    return {f"{name}.weight": generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def permuted(name, tensor):
    """As llama.cpp's convert_hf_to_gguf.py writes queries and keys."""
    heads = HEADS.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


@pytest.fixture
def write_file(tmp_path):
    """Writes a GGUF file with other numbers (None takes one away), more tensors or another architecture."""

    def write(*, kind=None, numbers=None, more=None, gone=(), architecture="llama", split="gpt-2", values=None):
        file = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(file, architecture)
        for name, value in (NUMBERS | (numbers or {})).items():
            if value is not None:
                getattr(writer, f"add_{name}")(value)
        for name, value in (values or {}).items():
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(split)
        writer.add_token_list(byte_vocabulary())
        writer.add_token_types([3 if token in ("<s>", "<e>") else 1 for token in byte_vocabulary()])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(256)
        writer.add_eos_token_id(257)
        writer.add_chat_template(TEMPLATE)
        for name, tensor in tensors().items():
            quantised, written = kind is not None and tensor.ndim == 2, permuted(name, tensor)
            if name not in gone:
                content = gguf.quants.quantize(written, kind) if quantised else written
                writer.add_tensor(name, content, raw_dtype=kind if quantised else None)
        for name, (tensor, dtype) in (more or {}).items():
            writer.add_tensor(name, tensor, raw_dtype=dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    return write


def assert_params_are(params, expected):
    """Asserts that parameters are tensors in the order of `transformers`."""
    np.testing.assert_array_equal(params["embedding"], expected("token_embd.weight"))
    names = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output"}
    names |= {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    for ours, theirs in names.items():
        for layer, kernel in enumerate(np.asarray(params["layers"][ours]["kernel"])):
            np.testing.assert_array_equal(kernel, expected(f"blk.{layer}.{theirs}.weight").T, err_msg=ours)


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1", "F16", "BF16"])
def test_tensors_become_the_parameters_dequantised_with_rows_of_queries_and_keys_in_our_order(write_file, kind):
    kind, expected = gguf.GGMLQuantizationType[kind], tensors()
    decoder = reads(write_file(kind=kind))
    assert decoder.config == DecoderConfig(
        WORDS, DIM, 2, 4, 2, HIDDEN, max_positions=32, rotary_base=100.0, norm_epsilon=float(np.float32(1e-5))
    )
    assert decoder.params["embedding"].dtype == jnp.float32
    rounded = lambda name: gguf.quants.dequantize(gguf.quants.quantize(expected[name], kind), kind)  # noqa: E731
    assert_params_are(decoder.params, rounded)
    np.testing.assert_array_equal(decoder.params["norm"]["scale"], expected["output_norm.weight"])


def test_a_separate_head_and_linear_scaling_are_read(write_file):
    head = np.ones((WORDS, DIM), np.float32)
    linear = {"rope_scaling_type": gguf.RopeScalingType.LINEAR, "rope_scaling_factor": 4.0}
    decoder = reads(write_file(more={"output.weight": (head, None)}, numbers=linear))
    assert (decoder.config.tied, decoder.config.rotary_scaling) == (False, RotaryScaling("linear", 4.0))
    np.testing.assert_array_equal(decoder.params["head"]["embedding"], head)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "mamba"}, ["general.architecture='mamba'", "'llama'"]),
        ({"numbers": {"rope_dimension_count": 4}}, ["llama.rope.dimension_count=4", "dimension_count=8"]),
        ({"numbers": {"head_count": 3, "rope_dimension_count": None}}, ["num_heads"]),
        ({"values": {"llama.vocab_size": 300}}, ["llama.vocab_size=300", "llama.vocab_size=259"]),
        ({"values": {"llama.rope.scaling.type": "yarn"}}, ["by 'yarn'", "linear, llama3"]),
        ({"gone": ("blk.1.attn_q.weight",)}, ["1 missing: model.layers.1.self_attn.q_proj.weight"]),
        ({"more": {"blk.0.attn_q.bias": (np.ones(4, np.float32), None)}}, ["1 unknown: blk.0.attn_q.bias"]),
        ({"more": {"rope_freqs.weight": (np.arange(1, 5, dtype=np.float32), None)}}, ["1 unknown: rope_freqs.weight"]),
        ({"more": {"a.weight": (np.zeros((1, 292), np.uint8), Q8_K)}}, ["cannot dequantise a.weight (Q8_K)"]),
        ({"split": "deepseek"}, ["'gpt2' split as 'deepseek'", "gpt-2, smollm"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(next(iter(value.items())))[:40],
)
def test_what_does_not_fit_is_told_in_one_line(write_file, change, words):
    assert_fails(reads, write_file(**change), *words)


@pytest.mark.parametrize("part", [10, 200, 5000, 0.5, 0.99])
def test_a_file_that_is_cut_is_told_in_one_line(write_file, part):
    file = write_file()
    content = file.read_bytes()
    file.write_bytes(content[: part if isinstance(part, int) else int(part * len(content))])
    assert_fails(reads, file, "cannot be read as GGUF", "copy it again")


def test_a_header_that_claims_an_array_of_2_to_the_40_is_told_at_once(tmp_path):
    key, file = b"general.tags", tmp_path / "model.gguf"
    array = struct.pack("<IIQ", 9, 5, 2**40)  # an array of int32
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + array
    file.write_bytes(header + bytes(1000))
    assert_fails(reads, file, "cannot be read as GGUF (the file ends early)")


def test_texts_become_tokens_and_back_and_conversations_texts(write_file):
    tokenizer = reads(write_file()).tokenizer
    (tokens,) = tokenizer.encode(["ab <e>é 12"])
    assert tokens.tolist()[0] == 258
    assert 257 in tokens
    assert tokenizer.decode(tokens) == "ab <e>é 12"
    assert tokenizer.decode(tokens, special=False) == "ab é 12"
    assert tokenizer.stops == (257,)
    assert tokenizer.chat([{"role": "user", "content": "hi"}], answer=True) == "<s><s>user: hi<e>\nassistant: "
