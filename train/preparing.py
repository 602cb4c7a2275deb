"""The command that prepares a data source ahead of its first use."""

from typing import Any, get_args

from .config.commands import PrepareArguments, elsewhere
from .config.data import (
    DataConfig,
    ImageConfig,
    ImageSource,
    InstructionConfig,
    InstructionSource,
    SceneConfig,
    SceneSource,
    TextConfig,
    TextSource,
)
from .config.fields import check_used
from .parsing import parse


def prepare(arguments: list[str]) -> None:
    """`unroll-jax prepare SOURCE --from PATH`: data ahead of their first use."""
    parsed = parse(PrepareArguments, arguments, "unroll-jax prepare", hint=elsewhere("prepare", arguments))
    source: Any = parsed.source  # of one of five kinds, which the type checker cannot tell apart
    columns = {name: getattr(parsed, name) for name in ("text_column", "label_column", "second_column")}
    share = parsed.validation_share
    if source in get_args(TextSource):
        from .data import text

        text.prepare(TextConfig(source=source, root=parsed.root, validation_share=share, **columns), log=print)
        return
    check_used(parsed, ((name, "the source table", False) for name in columns))
    if source in get_args(ImageSource):
        from .data import images

        images.prepare(ImageConfig(source=source, root=parsed.root, validation_share=share), log=print)
        return
    if source in get_args(InstructionSource):
        from .data import instructions

        instructions.prepare(InstructionConfig(source=source, root=parsed.root, validation_share=share), log=print)
        return
    shared = "a source of images with a class each, of texts or instructions"
    check_used(parsed, [("validation_share", shared, False)])
    if source in get_args(SceneSource):
        from .data import images

        images.prepare(SceneConfig(source=source, root=parsed.root), log=print)
    else:
        from .data import video

        video.prepare(DataConfig(source=source, root=parsed.root), log=print)
