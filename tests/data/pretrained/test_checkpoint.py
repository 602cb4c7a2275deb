"""Weights from a folder, or a hub that is simulated: read as they are, or a one-line
error that names what is wrong."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.data.pretrained.conftest import DIM, bert_tensors
from tests.errors import assert_fails, one_line
from unroll_jax.models import Classifier, Encoder, EncoderConfig
from unroll_jax.train.data.pretrained.encoders import load_pretrained, start_from
from unroll_jax.train.data.pretrained.folders import FILES, INDEX, SHARDS, find_folder

load = functools.partial(load_pretrained, log=lambda line: None)


def reads(folder):
    return load(str(folder))


def query_of(pretrained, layer):
    return pretrained.params["layers"]["query_key_value"]["kernel"][layer, :, :DIM]


def test_the_tensors_of_a_file_become_the_parameters(write_folder):
    pretrained = reads(write_folder())
    assert pretrained.config == EncoderConfig(20, 8, 2, 2, 12, 16, norm_epsilon=1e-12)
    shapes = jax.eval_shape(
        Encoder(pretrained.config).init, jax.random.key(0), jnp.ones((1, 1), int)
    )["params"]
    chex.assert_trees_all_equal_shapes(pretrained.params, shapes)
    query = bert_tensors()["bert.encoder.layer.1.attention.self.query.weight"]
    assert_array_equal(query_of(pretrained, 1), query.T)
    assert pretrained.hidden == "tanh"


@pytest.mark.parametrize(
    "names",
    [{"prefix": ""}, {"weight": "gamma", "bias": "beta"}],
    ids=["bare", "old norms"],
)
def test_other_names_of_the_same_tensors_are_known(write_folder, names):
    tensors = bert_tensors(**names)
    pretrained = reads(write_folder(tensors=tensors))
    assert_array_equal(
        pretrained.params["embeddings"]["word"]["embedding"],
        next(iter(tensors.values())),
    )
    assert sorted(pretrained.head) == ["hidden"]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_any_floating_dtype_become_float32(write_folder, dtype):
    stored = {name: one.astype(dtype) / 3 for name, one in bert_tensors().items()}
    pretrained = reads(write_folder(tensors=stored))
    leaves = jax.tree.leaves((pretrained.params, pretrained.head))
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}
    query = stored["bert.encoder.layer.1.attention.self.query.weight"]
    assert_array_equal(query_of(pretrained, 1), query.T.astype(np.float32))


WORD, NORM = "embeddings.word_embeddings.weight", "embeddings.LayerNorm.bias"
HIDDEN = "encoder.layer.0.intermediate.dense.weight"
DENSE = "encoder.layer.{}.output.dense.bias"


def test_tensors_that_do_not_fit_are_named_at_once(write_folder):
    tensors = bert_tensors(prefix="")
    del tensors[NORM]
    shapes = {HIDDEN: (DIM, 12), WORD: (19, DIM)}
    shapes |= {DENSE.format(0): (), DENSE.format(2): (DIM,)}
    for name, shape in shapes.items():
        tensors[name] = np.zeros(shape, np.float32)
    words = [
        "does not fit config.json: 5 tensors, as ",
        f"{NORM} is missing",
        f"{HIDDEN} is (8, 12), not (12, 8)",
        f"{WORD} is (19, 8), not (20, 8)",
        f"{DENSE.format(0)} is (), not (8,)",
        f"{DENSE.format(2)} is unknown",
    ]
    assert_fails(reads, write_folder(tensors=tensors), *words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, ["model_type='gpt2'", "bert, distilbert, roberta"]),
        (
            {"position_embedding_type": "relative_key"},
            ["position_embedding_type='relative_key'", "'absolute'"],
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else ", ".join(value),
)
def test_a_configuration_that_is_not_supported_is_named(write_folder, config, words):
    assert_fails(reads, write_folder(config=config), "config.json", *words)


def test_fields_that_old_configurations_leave_out_have_their_defaults(write_folder):
    left_out = dict.fromkeys(
        ("type_vocab_size", "hidden_act", "layer_norm_eps", "pad_token_id")
    )
    assert reads(write_folder(config=left_out)).config == EncoderConfig(
        20, 8, 2, 2, 12, 16
    )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"[" * 100_000, ["config.json is damaged"]),
        (
            "model.safetensors",
            b"junk",
            ["cannot be read as safetensors", "copy it again"],
        ),
        ("tokenizer.json", None, ["has no tokenizer.json", "save_pretrained(FOLDER)"]),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(write_folder, name, content, words):
    folder = write_folder()
    (folder / name).unlink() if content is None else (folder / name).write_bytes(
        content
    )
    assert_fails(reads, folder, *words)


def test_a_classifier_starts_from_what_fits_it(write_folder, getkey):
    pretrained = reads(write_folder())
    assert set(pretrained.head) == {"hidden"}
    for hidden in ("tanh", "relu"):
        params = start_from(
            pretrained,
            Classifier(Encoder(pretrained.config), 3, hidden=hidden),
            getkey(),
        )["params"]
        chex.assert_trees_all_equal(params["encoder"], pretrained.params)
        taken = np.array_equal(
            params["head"]["hidden"]["kernel"], pretrained.head["hidden"]["kernel"]
        )
        assert taken == (hidden == "tanh")
        assert not np.isin(
            params["head"]["logits"]["kernel"], bert_tensors()["classifier.weight"]
        ).any()
    with one_line(r"num_layers=3.*the pretrained one .*num_layers=2"):
        start_from(
            pretrained,
            Classifier(Encoder(EncoderConfig(20, 8, 3, 2, 12, 16)), 3),
            getkey(),
        )


def test_a_repository_is_downloaded_without_its_pickles(tmp_path, monkeypatch):
    for source in ("no/such/folder/here", "spaces in it", "", __file__):
        with one_line(f"pretrained={source} is not a folder, and the Hugging Face hub"):
            find_folder(source)
    requests, lines = [], []

    def download(source, *, allow_patterns):
        requests.append((source, allow_patterns))
        if source == "owner/new":
            raise ConnectionError("no network\nand more")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_folder("owner/tiny", log=lines.append) == tmp_path
    assert requests == [("owner/tiny", [*FILES, INDEX, SHARDS])]
    assert lines == ["looking for owner/tiny on the Hugging Face hub"]
    with one_line(
        r"=owner/new is not .* \(no network and more\); without a network, copy config.json, mo"
    ):
        find_folder("owner/new", log=lines.append)
