"""Signatures as the source has them, shapes included; and docstrings whose `*batch`
and `|y|` are no markup."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from sphinx.application import Sphinx

LITERAL = re.compile(r"(``.*?``|:\w+(?::\w+)?:`.*?`|`.*?`)")
FIRST = 400  # before napoleon, which reads the sections of a docstring


def setup(app: Sphinx) -> dict[str, Any]:
    """Is called by Sphinx."""
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _escape, priority=FIRST)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _signature(
    app: Sphinx,
    what: str,
    name: str,
    value: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None] | None:
    if what in ("function", "method") and inspect.isfunction(
        function := inspect.unwrap(value)
    ):
        node = _definition(function)
        node.args.args = [
            argument
            for argument in node.args.args
            if argument.arg not in ("self", "cls")
        ]
        for argument in (
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
        ):
            if isinstance(quoted := argument.annotation, ast.Constant) and isinstance(
                quoted.value, str
            ):
                argument.annotation = ast.parse(quoted.value, mode="eval").body
        return f"({ast.unparse(node.args)})", ast.unparse(
            node.returns
        ) if node.returns else None
    if what == "class" and (
        hasattr(value, "_fields") or hasattr(value, "__dataclass_fields__")
    ):
        fields = dict(
            field for base in reversed(value.__mro__) for field in _fields(base)
        )
        return f"({', '.join(_ordered(fields.values()))})", None
    return ("()", None) if what == "class" else None


def _definition(value: Any) -> Any:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    return node


def _fields(cls: type) -> Iterator[tuple[str, str]]:
    """The fields that a class of ours adds to its bases', as the source has them."""
    if not cls.__module__.startswith("unroll_jax"):
        return
    for node in _definition(cls).body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(
            node.annotation
        ).startswith("ClassVar"):
            name, default = (
                ast.unparse(node.target),
                "" if node.value is None else f" = {ast.unparse(node.value)}",
            )
            yield name, f"{name}: {ast.unparse(node.annotation)}{default}"


def _ordered(fields: Iterable[str]) -> Iterator[str]:
    """The fields, with a star before the first that has no default behind one that
    has: keywords alone pass it."""
    optional = starred = False
    for field in fields:
        if optional and not starred and " = " not in field:
            starred = True
            yield "*"
        optional |= " = " in field
        yield field


def _escape(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Escapes stars and bars outside of literals, equations and examples."""
    # the indentation of the directive or example that a line is in
    block: int | None = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if line.lstrip().startswith((".. ", ">>>")):
            block = indent - (line.lstrip()[0] == ">")
        if block is None:
            lines[number] = "".join(
                part if LITERAL.fullmatch(part) else _plain(part)
                for part in LITERAL.split(line)
            )


def _plain(text: str) -> str:
    return re.sub(
        r"(?<![\\*])\*(?!\*)(?=\w)|(?<!\\)\|", lambda sign: rf"\{sign[0]}", text
    )
