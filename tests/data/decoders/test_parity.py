"""Parity with `transformers`: every hidden state and all logits, of random decoders and of a real one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.data.conftest import quiet
from tests.data.decoders.conftest import byte_tokenizer
from unroll_jax.models import Decoder, decode, decoder_logits, empty_cache, rms_norm
from unroll_jax.train.data.instructions import read_prompts
from unroll_jax.train.data.pretrained.decoders import PretrainedDecoder, load_decoder, open_decoder_source
from unroll_jax.train.data.pretrained.folders import ONE_FILE
from unroll_jax.train.generation import Settings, answer
from unroll_jax.train.loading import open_decoder

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
COUNT, TOKENS = 16, 8  # of real prompts; with 50 prompts and 32 tokens it takes 15 minutes, and holds too
SIZES |= {"vocab_size": 270, "max_position_embeddings": 64, "num_key_value_heads": 2, "eos_token_id": 257}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = {
    "llama3, tied": {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16}, "tie_word_embeddings": True},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}, "rms_norm_eps": 1e-3},
    "a head of keys each": {"num_key_value_heads": 4, "num_hidden_layers": 3},
    "wide heads, one of keys": {"num_key_value_heads": 1, "head_dim": 12, "tie_word_embeddings": True},
    "Mistral": {"sliding_window": None},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 12},
}


def their_states_and_logits(model, tokens, torch):
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor(tokens), output_hidden_states=True)
    return [state.numpy() for state in outputs.hidden_states], outputs.logits.numpy()


def our_states_and_logits(decoder: PretrainedDecoder, tokens):
    """The last state is normalised, as in `transformers`."""
    config = decoder.config

    @jax.jit
    def run(params):
        states = Decoder(config).apply({"params": params}, jnp.asarray(tokens, jnp.int32))
        last = rms_norm(states[-1], params["norm"]["scale"], config.norm_epsilon)
        return states.at[-1].set(last), decoder_logits(config, params, states[-1])

    return run(decoder.params)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_logits_are_those_of_transformers(case, tmp_path, oracles):
    torch, transformers = oracles
    torch.manual_seed(0)
    family = case if case in ("Mistral", "Qwen2", "Qwen3") else "Llama"
    config = getattr(transformers, f"{family}Config")(**SIZES | CASES[case])
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path, max_shard_size="40KB" if case == "linear" else "1GB")
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    decoder = load_decoder(str(tmp_path), log=lambda line: None)
    tokens = np.random.default_rng(0).integers(0, 270, (2, 40))
    states, logits = their_states_and_logits(theirs, tokens, torch)
    our_states, our_logits = our_states_and_logits(decoder, tokens)
    np.testing.assert_allclose(our_states, np.stack(states), rtol=0, atol=1e-4)
    np.testing.assert_allclose(our_logits, logits, rtol=0, atol=1e-4)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
def test_a_real_language_model_is_that_of_transformers_and_answers(smollm2, oracles):
    """`transformers` dequantises the same file separately."""
    torch, transformers = oracles
    decoder = load_decoder(str(smollm2), log=lambda line: None)
    config, tokenizer = decoder.config, decoder.tokenizer
    assert (config.num_layers, config.dim, config.num_key_value_heads, config.tied) == (30, 576, 3, True)
    file = {"pretrained_model_name_or_path": str(smollm2.parent), "gguf_file": smollm2.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**file).eval()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.chat(messages, answer=True)
    (tokens,) = tokenizer.encode([text])
    auto = transformers.AutoTokenizer.from_pretrained(**file)
    assert auto.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == text
    assert auto(text)["input_ids"] == tokens.tolist()
    states, logits = their_states_and_logits(theirs, tokens[None], torch)
    our_states, our_logits = our_states_and_logits(decoder, tokens[None])
    for ours, state in zip(our_states, states, strict=True):
        np.testing.assert_allclose(ours, state, rtol=0, atol=1e-4 * max(1.0, np.abs(state).max()))
    np.testing.assert_allclose(our_logits, logits, rtol=0, atol=1e-4 * np.abs(logits).max())
    reply = greedy(decoder, tokens, 12)
    assert tokenizer.decode(reply, special=False) == "The capital of France is Paris."
    with torch.no_grad():
        expected = theirs.generate(torch.tensor(tokens[None]), do_sample=False, max_new_tokens=12, pad_token_id=2)
    assert reply == expected[0, len(tokens) :].tolist()


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
def test_a_real_language_model_is_written_for_transformers_and_answers_token_for_token(smollm2, oracles, tmp_path):
    _, transformers = oracles
    decoder, source = (read(str(smollm2), log=lambda line: None) for read in (load_decoder, open_decoder_source))
    tensors, files = source.to_transformers(jax.device_get(decoder.params), str(decoder.tokenizer.template))
    save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, tmp_path / ONE_FILE, {"format": "pt"})
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Write a line about 12345 naïve cats.\n\n- it's\tgood"}]
    (tokens,) = decoder.tokenizer.encode([decoder.tokenizer.chat(messages, answer=True)])
    prompt = auto.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert prompt["input_ids"][0].tolist() == tokens.tolist()
    reply = theirs.generate(**prompt, do_sample=False, max_new_tokens=12)[0, len(tokens) :].tolist()
    assert reply == greedy(decoder, tokens, 12)
    assert auto.decode(reply, skip_special_tokens=True) == decoder.tokenizer.decode(reply, special=False)


@pytest.fixture(scope="module")
def opened_real(smollm2):
    return open_decoder(str(smollm2), log=quiet)


@pytest.fixture(scope="module")
def plain(opened_real, real_data):
    prompts = read_prompts(real_data / "alpaca" / "alpaca_5000.json")[:COUNT]
    return answer(opened_real, prompts, Settings(max_tokens=TOKENS, batch=COUNT), log=quiet)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.slow
@pytest.mark.data
def test_answers_to_real_prompts_are_those_of_transformers(opened_real, plain, oracles, smollm2):
    torch, transformers = oracles
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name).eval()
    for one in plain[:6]:
        chat = opened_real.tokenizer.chat([{"role": "user", "content": one.prompt.text}], answer=True)
        (tokens,) = opened_real.tokenizer.encode([chat])
        with torch.no_grad():
            whole = theirs.generate(torch.tensor(tokens[None]), do_sample=False, max_new_tokens=TOKENS, pad_token_id=2)
        assert one.tokens == whole[0, len(tokens) :].tolist()


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("exit_layer", "draft_length"), [(8, 2), (28, 4)])
def test_drafted_answers_to_real_prompts_are_the_plain_ones(exit_layer, draft_length, opened_real, plain):
    settings = Settings(max_tokens=TOKENS, batch=COUNT, exit_layer=exit_layer, draft_length=draft_length)
    answers = answer(opened_real, [one.prompt for one in plain], settings, log=(lines := []).append)
    assert [one.tokens for one in answers] == [one.tokens for one in plain]
    assert "tokens a verification" in lines[-1]
    assert np.mean([len(one.tokens) for one in answers]) > TOKENS / 2


def greedy(decoder, tokens, count):
    config = decoder.config

    @jax.jit
    def step(params, tokens, cache, positions):
        y, cache = decode(config, params, tokens, cache, positions)
        return jnp.argmax(decoder_logits(config, params, y[:, -1]), -1)[:, None], cache

    cache = empty_cache(config, 1, len(tokens) + count)
    following, reply = jnp.asarray(tokens)[None], []
    places = jnp.arange(len(tokens))[None]
    while len(reply) < count and (not reply or reply[-1] not in decoder.tokenizer.stops):
        following, cache = step(decoder.params, following, cache, places)
        places = places[:, -1:] + 1
        reply.append(int(following[0, 0]))
    return reply
