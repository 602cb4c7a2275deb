"""A program that renders chat templates as `transformers` does, with limits of time and
memory: weights, and their templates, may come from anywhere."""

import datetime
import json
import resource
import sys
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Of one chat: tokenizers take about a hundred bytes of memory for each.
MOST_CHARACTERS = 1 << 22


def render(
    template: str, chats: list[dict[str, Any]], seconds: int, most_bytes: int
) -> list[str]:
    """Renders each of the chats, whose values the template knows by name."""
    # a signal at the first limit, no way on at the second
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    compiled = environment.from_string(template)
    return [_checked(compiled.render(**chat)) for chat in chats]


class Generation(jinja2.ext.Extension):
    """The tag with which `transformers` marks what the assistant says. It renders its
    contents."""

    tags: Any = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.Node:
        """Returns the contents, with variables of their own."""
        line = next(parser.stream).lineno
        contents = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(contents, lineno=line)


def _checked(text: str) -> str:
    """Returns the text of a chat, which must be UTF-8 and can be tokenized."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a chat gets {len(text):,} characters")
    text.encode()
    return text


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Returns JSON without the escapes for HTML of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    try:
        json.dump(render(**json.load(sys.stdin)), sys.stdout)
    except Exception as error:  # a template can raise anything
        sys.exit(" ".join(str(error).split()) or type(error).__name__)
