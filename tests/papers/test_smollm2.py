"""A GGUF file becomes a folder of `transformers` that the application reads."""

import numpy as np
import pytest

from papers.smollm2 import main
from tests.data.decoders.conftest import TEMPLATE, byte_tokenizer
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


def drawn_tensors():
    """Returns tensors in the order of `transformers`, by GGUF's names."""
    shapes = {"token_embd": (len(TOKENS), DIM), "output_norm": (DIM,)}
    for number in range(LAYERS):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in LAYER.items()}
    generator = np.random.default_rng(0)
    return {
        f"{name}.weight": generator.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def interleaved(tensor, heads):
    """Returns rows as llama.cpp writes queries and keys: row j of the first half of a
    head, then row j of the second half."""
    rows = []
    for head in np.split(tensor, heads):
        first, second = np.split(head, 2)
        for one, other in zip(first, second, strict=True):
            rows += [one, other]
    return np.stack(rows)


def write_gguf(file, kind, *, pre="smollm"):
    import gguf

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100.0)
    writer.add_rope_dimension_count(DIM // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TOKENS.index("<s>"))
    writer.add_eos_token_id(TOKENS.index("<e>"))
    writer.add_unk_token_id(TOKENS.index("<s>"))
    writer.add_pad_token_id(TOKENS.index("<e>"))
    writer.add_chat_template(TEMPLATE)

    for name, tensor in drawn_tensors().items():
        if "attn_q" in name:
            tensor = interleaved(tensor, HEADS)
        if "attn_k" in name:
            tensor = interleaved(tensor, KEY_HEADS)
        if tensor.ndim == 2:
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.oracle("gguf")
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "F32"])
def test_parameters_are_the_dequantised_tensors_with_rows_in_our_order(name, tmp_path):
    import gguf

    kind = gguf.GGMLQuantizationType[name]
    write_gguf(tmp_path / "model.gguf", kind)
    out = tmp_path / "folder"
    assert main([str(out), "--file", str(tmp_path / "model.gguf")]) == 0
    decoder = load_decoder(str(out), log=lambda line: None)
    sizes = (len(TOKENS), DIM, LAYERS, HEADS, KEY_HEADS, HIDDEN)
    assert decoder.config == DecoderConfig(
        *sizes, max_positions=64, rotary_base=100.0, norm_epsilon=1e-5
    )

    def rounded(name):
        return gguf.dequantize(gguf.quantize(drawn_tensors()[name], kind), kind)

    params = decoder.params
    np.testing.assert_array_equal(params["embedding"], rounded("token_embd.weight"))
    for theirs, ours in OURS.items():
        for layer, kernel in enumerate(params["layers"][ours]["kernel"]):
            tensor = rounded(f"blk.{layer}.{theirs}.weight")
            np.testing.assert_array_equal(kernel, tensor.T, err_msg=ours)


@pytest.mark.oracle("gguf")
def test_the_tokenizer_splits_numbers_and_keeps_special_tokens(
    tmp_path,
):
    import gguf

    write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.F32)
    out = tmp_path / "folder"
    assert main([str(out), "--file", str(tmp_path / "model.gguf")]) == 0
    tokenizer = load_decoder(str(out), log=lambda line: None).tokenizer
    tokens = tokenizer.encode(["<s>12 ab<e>"])[0]
    assert [TOKENS[token] for token in tokens] == ["<s>", "1", "2", "Ġa", "b", "<e>"]
    assert tokenizer.decode(tokens) == "<s>12 ab<e>"
    assert tokenizer.stops == (TOKENS.index("<e>"),)
    assert tokenizer.named["bos_token"] == "<s>"
    message = {"role": "user", "content": "ab"}
    assert tokenizer.chat([message]) == "<s><s>user: ab<e>\n"
