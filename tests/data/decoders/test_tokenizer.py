"""Tokenizers and chat templates of folders, and errors for bad ones."""

import base64
import json

import pytest

from tests.data.decoders.conftest import TEMPLATE
from tests.errors import assert_fails, one_line
from unroll_jax.train.data.pretrained.chat import folder_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


def test_a_folder_gives_tokens_texts_and_what_ends_an_answer(write_folder):
    tokenizer = folder_tokenizer(write_folder())
    tokens = tokenizer.encode(["ab", "longer than that"])
    assert [len(each) for each in tokens] == [1, 16]  # no padding
    assert [tokenizer.decode(each) for each in tokens] == ["ab", "longer than that"]
    assert (
        tokenizer.chat(MESSAGES, answer=True)
        == "<s><s>user: hi<e>\nassistant: yes<e>\nassistant: "
    )
    assert (tokenizer.stops, tokenizer.size, tokenizer.named) == (
        (257,),
        259,
        {"bos_token": "<s>", "eos_token": "<e>"},
    )


def test_answers_end_as_the_generation_config_says(
    write_folder,
):
    folder = write_folder(config={"eos_token_id": "<e>"})
    assert_fails(
        folder_tokenizer,
        folder,
        "eos_token_id=['<e>']; it must be the number of a token",
    )
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [256, 257]})
    )
    assert folder_tokenizer(folder).stops == (256, 257)


# Templates, and words of the error about them.
BAD = {
    "no Jinja": ("{% if %}", "cannot be used"),
    "out of the sandbox": (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "cannot be used",
    ),
    "raises": (TEMPLATE, "no tool"),
    "none": (None, "has no chat template"),
}
LIMITED = {
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro"
        " %}{{ f(60) }}",
        "takes more than 1 s",
    ),
    "products": ("{{ messages[0].content * 100000000000 }}", "MemoryError"),
    "long texts": ("{{ 'x' * 5000000 }}", "a chat gets 5,000,000 characters"),
    "half a letter": ("{{ '\\ud800' }}", "surrogates not allowed"),
}
REPLACE = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 300}
GREEDY = {
    "normalizer of a table": {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 300).decode(),
    },
    "decoder": REPLACE,
}


@pytest.fixture
def tokenizer_of(write_folder):
    folder = write_folder()

    def make(template):
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": template})
        )
        return folder_tokenizer(folder)

    return make


@pytest.mark.parametrize(("template", "words"), BAD.values(), ids=BAD)
def test_a_template_that_cannot_be_used_is_one_line(tokenizer_of, template, words):
    with one_line(words, "llama"):  # the name of the folder
        tokenizer_of(template).chat([{"role": "tool", "content": "hi"}])


@pytest.mark.parametrize(("template", "words"), LIMITED.values(), ids=LIMITED)
def test_a_template_has_limits_of_time_and_memory(
    template, words, tokenizer_of, monkeypatch
):
    monkeypatch.setattr("unroll_jax.train.data.pretrained.chat.MOST_SECONDS", 1)
    with one_line("cannot be used", words):
        tokenizer_of(template).chat(MESSAGES)


@pytest.mark.parametrize(("name", "part"), GREEDY.items(), ids=GREEDY)
def test_a_tokenizer_that_multiplies_characters_is_refused(write_folder, name, part):
    folder = write_folder()
    values = json.loads((folder / "tokenizer.json").read_text())
    values[name.partition(" ")[0]] = part
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with one_line("characters of one; it must make at most 256"):
        folder_tokenizer(folder)


def test_a_pattern_without_end_is_told_in_one_line(write_folder):
    folder = write_folder()
    values = json.loads((folder / "tokenizer.json").read_text())
    values["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a|aa)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with one_line("cannot be used as a tokenizer"):
        folder_tokenizer(folder).encode(["a" * 60 + "b"])


# Templates whose texts depend on what `transformers` passes to them, and the texts.
QUIRKS = {
    "special tokens": (
        "{{ bos_token }}{{ pad_token }}{{ unk_token }}{{ sep_token }}{{ eos_token }}",
        "<s><p><u><t><e>",
    ),
    "a token that is not there": (
        "{{ cls_token is defined }}{{ mask_token }}",
        "False",
    ),
    "tools": (
        "{{ tools is none }}{{ documents is none }}{{ tools is defined }}",
        "TrueTrueTrue",
    ),
    "the date": (
        "{% if strftime_now is defined %}{{ strftime_now('%y') | length }}{% endif %}",
        "2",
    ),
    "generation": (
        "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}"
        "{{ m.content }}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
        "hi21yes21",
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}"
        "{{ m.content }}{% endfor %}",
        "hi",
    ),
    "JSON": (
        "{{ {'b': '<é>', 'a': [1]} | tojson(sort_keys=true, separators=(',', ':')) }}",
        '{"a":[1],"b":"<é>"}',
    ),
}


@pytest.fixture
def quirky(write_folder):
    folder = write_folder()

    def make(template):
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<old>"}
        settings["chat_template"] = [
            {"name": "tool_use", "template": "of tools"},
            {"name": "default", "template": template},
        ]
        tokens = {"bos_token": {"content": "<s>"}, "pad_token": "<p>"}
        tokens |= {"unk_token": "<u>", "sep_token": "<t>", "eos_token": "<e>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
        return folder

    return make


@pytest.mark.parametrize(("template", "text"), QUIRKS.values(), ids=QUIRKS)
def test_templates_know_what_transformers_passes_to_them(quirky, template, text):
    assert folder_tokenizer(quirky(template)).chat(MESSAGES) == text


@pytest.mark.oracle("transformers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("template", "text"), QUIRKS.values(), ids=QUIRKS)
def test_transformers_gives_the_same_texts(quirky, template, text):
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(quirky(template))
    assert theirs.apply_chat_template(MESSAGES, tokenize=False) == text


def test_newer_tokenizers_name_their_tokens_themselves(quirky):
    folder = quirky("{{ bos_token }}{{ pad_token }}")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"added_tokens_decoder": {}}
    path.write_text(json.dumps(settings))
    assert folder_tokenizer(folder).chat(MESSAGES) == "<old>"
