"""Parity with `transformers`: every hidden state and all logits of random decoders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.data.decoders.conftest import byte_tokenizer
from unroll_jax.models import Decoder, decoder_logits, rms_norm
from unroll_jax.train.data.pretrained.decoders import PretrainedDecoder, load_decoder

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SIZES |= {
    "vocab_size": 270,
    "max_position_embeddings": 64,
    "num_key_value_heads": 2,
    "eos_token_id": 257,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
CASES = {
    "llama3, tied": {
        "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16},
        "tie_word_embeddings": True,
    },
    "in shards": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "rms_norm_eps": 1e-3,
    },
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"num_key_value_heads": 1, "head_dim": 12},
}


def their_states_and_logits(model, tokens, torch):
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor(tokens), output_hidden_states=True)
    return [state.numpy() for state in outputs.hidden_states], outputs.logits.numpy()


def our_states_and_logits(decoder: PretrainedDecoder, tokens):
    config = decoder.config

    @jax.jit
    def run(params):
        states = Decoder(config).apply(
            {"params": params}, jnp.asarray(tokens, jnp.int32)
        )
        last = rms_norm(states[-1], params["norm"]["scale"], config.norm_epsilon)
        return states.at[-1].set(last), decoder_logits(config, params, states[-1])

    return run(decoder.params)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_logits_are_those_of_transformers(case, tmp_path, oracles):
    torch, transformers = oracles
    torch.manual_seed(0)
    family = case if case in ("Qwen2", "Qwen3") else "Llama"
    config = getattr(transformers, f"{family}Config")(**SIZES | CASES[case])
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    theirs.save_pretrained(
        tmp_path, max_shard_size="40KB" if case == "in shards" else "1GB"
    )
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    decoder = load_decoder(str(tmp_path), log=lambda line: None)
    tokens = np.random.default_rng(0).integers(0, 270, (2, 40))
    states, logits = their_states_and_logits(theirs, tokens, torch)
    our_states, our_logits = our_states_and_logits(decoder, tokens)
    assert_allclose(our_states, np.stack(states), rtol=0, atol=1e-4)
    assert_allclose(our_logits, logits, rtol=0, atol=1e-4)
