"""Directives for the command line: its usage, its experiments, and the options of
each command, from the code."""

import contextlib
import importlib
import io
from typing import Any

import tyro
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from unroll_jax.train.__main__ import USAGE
from unroll_jax.train.cli import filled
from unroll_jax.train.registry import EXPERIMENTS


class Usage(SphinxDirective):
    """The commands, as the program itself lists them."""

    def run(self) -> list[nodes.Node]:
        """Is called by Sphinx."""
        return [nodes.literal_block(USAGE, USAGE, language="none")]


class Experiments(SphinxDirective):
    """Every experiment: its name, what it shows, and what a run of it ends with."""

    def run(self) -> list[nodes.Node]:
        """Is called by Sphinx."""
        listed = nodes.definition_list(classes=["options"])
        for name, experiment in EXPERIMENTS.items():
            options = type(experiment.config).__name__
            words = (
                experiment.summary,
                (
                    f"Source: {experiment.paper}. Expect: {experiment.expect}. Options:"
                    f" {options}."
                ),
            )
            listed += _item(name, *words)
        return [listed]


class Options(SphinxDirective):
    """The options of a command, by the class of its arguments, or of experiments, by
    their names."""

    required_arguments, optional_arguments = 1, 9

    def run(self) -> list[nodes.Node]:
        """Is called by Sphinx."""
        listed = []
        for named in self.arguments:
            if named in EXPERIMENTS:
                default: Any = EXPERIMENTS[named].config
                listed += self.parse_text_to_nodes(_introduction(named))
            else:
                module, _, name = named.rpartition(".")
                default = getattr(importlib.import_module(module), name)
            shown = (
                help_of(default)
                if isinstance(default, type)
                else help_of(type(default), default)
            )
            listed.append(nodes.literal_block(shown, shown, language="none"))
        return listed


def help_of(cls: Any, default: Any = None) -> str:
    """Returns the help of a command's options, from a dataclass and an instance with
    its defaults."""
    given = {} if default is None else {"default": default}
    with (
        contextlib.redirect_stdout(io.StringIO()) as shown,
        contextlib.suppress(SystemExit),
    ):
        tyro.cli(cls, args=["--help"], prog="", **given)
    return filled(shown.getvalue().partition("\n\n")[2])


def setup(app: Sphinx) -> dict[str, Any]:
    """Is called by Sphinx."""
    app.add_directive("usage", Usage)
    app.add_directive("experiments", Experiments)
    app.add_directive("options", Options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _introduction(named: str) -> str:
    cls = type(EXPERIMENTS[named].config)
    names = ", ".join(
        f"`{name}`"
        for name, experiment in EXPERIMENTS.items()
        if type(experiment.config) is cls
    )
    return (
        f"Options of {names}, with the defaults of `{named}`. `unroll-jax run {named}"
        " --help` prints the same list."
    )


def _item(term: str, *paragraphs: str) -> nodes.definition_list_item:
    definition = nodes.definition(
        "", *(nodes.paragraph(words, words) for words in paragraphs)
    )
    return nodes.definition_list_item(
        "", nodes.term("", "", nodes.literal(term, term)), definition
    )
