"""A GGUF file becomes a folder of `transformers` that the application reads."""

import pytest
from numpy.testing import assert_array_equal

from papers.smollm2 import main
from tests.data.conftest import drawn_tensors
from tests.data.decoders.conftest import TEMPLATE, byte_tokenizer
from tests.train.commands import quiet
from unroll_jax.models import DecoderConfig
from unroll_jax.train.data.pretrained.decoders import load_decoder

DIM, HIDDEN, HEADS, KEY_HEADS, LAYERS = 32, 64, 4, 2, 2
# Bytes, two special tokens, and merges: one with a space, one of two digits.
NUMBERS = byte_tokenizer().get_vocab()
TOKENS = [*sorted(NUMBERS, key=NUMBERS.__getitem__), "Ġa", "12"]
MERGES = ["Ġ a", "1 2", "a b"]
SPECIAL = ("<s>", "<e>")
LAYER = {
    "attn_norm": (DIM,),
    "attn_q": (DIM, DIM),
    "attn_k": (DIM // 2, DIM),
    "attn_v": (DIM // 2, DIM),
    "attn_output": (DIM, DIM),
    "ffn_norm": (DIM,),
    "ffn_gate": (HIDDEN, DIM),
    "ffn_up": (HIDDEN, DIM),
    "ffn_down": (DIM, HIDDEN),
}
OURS = {
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
pytestmark = pytest.mark.xdist_group("torch")


def tensors():
    """Returns tensors in the order of `transformers`, by GGUF's names."""
    shapes = {"token_embd.weight": (len(TOKENS), DIM), "output_norm.weight": (DIM,)}
    for number in range(LAYERS):
        for name, shape in LAYER.items():
            shapes[f"blk.{number}.{name}.weight"] = shape
    return drawn_tensors(shapes, scale=0.3)


def interleaved(tensor, heads):
    """Returns rows as llama.cpp writes queries and keys: row j of the first half of a
    head, then row j of the second half."""
    halves = tensor.reshape(heads, 2, -1, tensor.shape[-1])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


# By the name of the writer's method behind "add_".
HEADER = {
    "context_length": 64,
    "embedding_length": DIM,
    "block_count": LAYERS,
    "feed_forward_length": HIDDEN,
    "head_count": HEADS,
    "head_count_kv": KEY_HEADS,
    "layer_norm_rms_eps": 1e-5,
    "rope_freq_base": 100.0,
    "rope_dimension_count": DIM // HEADS,
    "vocab_size": len(TOKENS),
    "tokenizer_model": "gpt2",
    "tokenizer_pre": "smollm",
    "token_list": TOKENS,
    "token_types": [3 if token in SPECIAL else 1 for token in TOKENS],
    "token_merges": MERGES,
    "bos_token_id": TOKENS.index("<s>"),
    "eos_token_id": TOKENS.index("<e>"),
    "unk_token_id": TOKENS.index("<s>"),
    "pad_token_id": TOKENS.index("<e>"),
    "chat_template": TEMPLATE,
}


def write_gguf(file, kind):
    import gguf

    writer = gguf.GGUFWriter(file, "llama")
    for name, value in HEADER.items():
        getattr(writer, f"add_{name}")(value)
    for name, tensor in tensors().items():
        for part, heads in (("attn_q", HEADS), ("attn_k", KEY_HEADS)):
            if part in name:
                tensor = interleaved(tensor, heads)
        if tensor.ndim == 2:
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def converted(tmp_path):
    def convert(kind):
        file, out = tmp_path / "model.gguf", tmp_path / "folder"
        write_gguf(file, kind)
        assert main([str(out), "--file", str(file)]) == 0
        return load_decoder(str(out), log=quiet)

    return convert


@pytest.mark.oracle("gguf")
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "F32"])
def test_parameters_are_the_dequantised_tensors_with_rows_in_our_order(name, converted):
    import gguf

    kind = gguf.GGMLQuantizationType[name]
    decoder = converted(kind)
    sizes = (len(TOKENS), DIM, LAYERS, HEADS, KEY_HEADS, HIDDEN)
    assert decoder.config == DecoderConfig(
        *sizes, max_positions=64, rotary_base=100.0, norm_epsilon=1e-5
    )

    def rounded(name):
        return gguf.dequantize(gguf.quantize(tensors()[name], kind), kind)

    params = decoder.params
    assert_array_equal(params["embedding"], rounded("token_embd.weight"))
    for theirs, ours in OURS.items():
        for layer, kernel in enumerate(params["layers"][ours]["kernel"]):
            tensor = rounded(f"blk.{layer}.{theirs}.weight")
            assert_array_equal(kernel, tensor.T, err_msg=ours)


@pytest.mark.oracle("gguf")
def test_the_tokenizer_splits_numbers_and_keeps_special_tokens(converted):
    import gguf

    tokenizer = converted(gguf.GGMLQuantizationType.F32).tokenizer
    tokens = tokenizer.encode(["<s>12 ab<e>"])[0]
    assert [TOKENS[token] for token in tokens] == ["<s>", "1", "2", "Ġa", "b", "<e>"]
    assert tokenizer.decode(tokens) == "<s>12 ab<e>"
    assert tokenizer.stops == (TOKENS.index("<e>"),)
    assert tokenizer.named["bos_token"] == "<s>"
    message = {"role": "user", "content": "ab"}
    assert tokenizer.chat([message]) == "<s><s>user: ab<e>\n"
