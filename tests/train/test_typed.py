"""Messages name options as they are typed at the command that failed."""

import pytest

from unroll_jax.train.cli import as_typed


@pytest.mark.parametrize(
    ("command", "message", "typed"),
    [
        ("run", "data.root=clips is empty", "--data.root clips is empty"),
        ("prepare", "data.root=clips is empty", "--from clips is empty"),
        ("run", "use data.source=video", "use --data.source video"),
        ("prepare", "use data.source=video", "use prepare video"),
        ("sweep", "data.validation_share must be", "--data.validation-share must be"),
        ("prepare", "data.validation_share=2 is", "--validation-share 2 is"),
        ("run", "with data.prepared or UNROLL_PREPARED", "with --data.prepared or UNROLL_PREPARED"),
        ("prepare", "with data.prepared or UNROLL_PREPARED", "with UNROLL_PREPARED"),
        ("evaluate", "with data.prepared or UNROLL_PREPARED", "with UNROLL_PREPARED"),
        ("run", "embeddings=v.txt is empty", "--model.embeddings v.txt is empty"),
        ("run", "model.pretrained=e is a file", "--model.pretrained e is a file"),
    ],
)
def test_an_option_is_named_as_it_is_typed(command, message, typed):
    assert as_typed(message, command) == typed


@pytest.mark.parametrize(
    "message", ["e holds no model.safetensors", "data.csv line 1", "--data.root x", "x/data.root=y"]
)
def test_what_is_no_option_stays_as_it_is(message):
    assert as_typed(message, "run") == message
