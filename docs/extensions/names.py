"""Public names: where each has its page, what an abbreviated name in a docstring
means, and what tables hold."""

import ast
import builtins
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import unroll_jax

# Modules whose `__all__` is public, the one whose name for a thing is shortest first.
MODULES = (
    "unroll_jax",
    "unroll_jax.energies",
    "unroll_jax.fixed_point",
    "unroll_jax.constrained",
    "unroll_jax.certificates",
    "unroll_jax.perturbations",
    "unroll_jax.looped",
    "unroll_jax.models",
    "unroll_jax.nnx",
    "unroll_jax.linen",
)
GENERATED = "docs/reference/api/generated/"
APPLICATION = (
    "unroll_jax.train",
    "unroll_jax.train.config.errors",
    "unroll_jax.train.core.loop",
    "unroll_jax.train.loading",
    "unroll_jax.train.main",
    "pathlib",
)
# Packages whose names docstrings and signatures may use; their own documentation is
# elsewhere, so nothing is linked.
OTHERS = (
    "jax",
    "jaxtyping",
    "flax",
    "optax",
    "numpy",
    "jaxopt",
    "scipy",
    "collections",
    "typing",
    "pathlib",
)


@functools.cache
def public() -> dict[str, tuple[str, str]]:
    """The module and name under which everything public is documented, by the full
    names that it has."""
    documented: dict[tuple[str, int], tuple[str, str]] = {}
    return {
        f"{module}.{name}": documented.setdefault((name, id(value)), (module, name))
        for module in MODULES
        for name, value in _names(module)
    }


def pages() -> dict[str, str]:
    """File names of pages that differ from another's in upper and lower case alone,
    which some disks do not tell."""
    full = {".".join(place) for place in public().values()}
    counts = Counter(map(str.lower, full))
    return {
        name: f"{name}-class"
        for name in full
        if counts[name.lower()] > 1 and name.rpartition(".")[2][0].isupper()
    }


def listed(rooms: Iterable[str]) -> dict[str, list[str]]:
    """The public names that files or folders of the library define, in the order of
    their files, by module."""
    by_module: dict[str, list[tuple[str, str]]] = {}
    for module, name in dict.fromkeys(public().values()):
        home = _home(f"{module}.{name}", getattr(importlib.import_module(module), name))
        if home.split(".")[1] in rooms:
            by_module.setdefault(module, []).append((home, name))
    return {
        module: [
            name for _, name in sorted(by_module[module], key=lambda pair: pair[0])
        ]
        for module in by_module
    }


class Names(SphinxDirective):
    """Public names that files or folders of the library define, each with a page."""

    required_arguments, optional_arguments = 1, 12

    def run(self) -> list[nodes.Node]:
        """Is called by Sphinx."""
        tables = [
            (f"From `{module}`:", _table(module, names))
            for module, names in listed(self.arguments).items()
        ]
        return self.parse_text_to_nodes(
            "\n".join(
                f"{title}\n\n```{{eval-rst}}\n{table}```\n" for title, table in tables
            )
        )


def words() -> dict[str, list[str]]:
    """Returns a description of every public table and constant, for its page."""
    described = {}
    for module in MODULES:
        for name, value in _names(module):
            if not isinstance(value, type) and not inspect.isfunction(
                inspect.unwrap(value)
            ):
                described[f"{module}.{name}"] = _words(f"{module}.{name}", value)
    return described


def setup(app: Sphinx) -> dict[str, Any]:
    """Is called by Sphinx."""
    app.add_directive("names", Names)
    app.connect("config-inited", _generate)
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-docstring", _describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _generate(app: Sphinx, config: Any) -> None:
    """Has autosummary write the page of every public name; a file whose name begins
    with a dot is no page."""
    source = Path(app.srcdir, GENERATED, ".names.md")
    source.parent.mkdir(exist_ok=True)
    full = {
        module: [name for place, name in public().values() if place == module]
        for module in MODULES
    }
    source.write_text(
        "\n".join(_table(module, names, ".") for module, names in full.items()),
        encoding="utf-8",
    )
    config.autosummary_generate = [GENERATED + source.name]


def _table(module: str, names: Iterable[str], folder: str = "generated") -> str:
    entries = "".join(f"   {name}\n" for name in dict.fromkeys(names))
    return (
        f".. currentmodule:: {module}\n\n.. autosummary::\n   :toctree:"
        f" {folder}\n\n{entries}"
    )


def _home(full: str, value: Any) -> str:
    """The module that defines a public value."""
    if isinstance(value, type) or inspect.isroutine(value):
        return inspect.unwrap(value).__module__
    name = full.rpartition(".")[2]
    return next(
        m.__name__
        for m in _modules()
        if getattr(m, name, None) is value and _assigns(m.__name__, name)
    )


def _names(module: str) -> Iterator[tuple[str, Any]]:
    loaded = importlib.import_module(module)
    yield from (
        (name, getattr(loaded, name))
        for name in loaded.__all__
        if not inspect.ismodule(getattr(loaded, name))
    )


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Node | None:
    """Returns a link to a name's page; none if it is private, a module's or another
    package's."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip("~.")
    places = public()
    modules = dict.fromkeys([node.get("py:module") or "unroll_jax", *MODULES])
    place = next(
        (
            places[name]
            for name in (target, *(f"{m}.{target}" for m in modules))
            if name in places
        ),
        None,
    )
    if place is not None:
        full = ".".join(place)
        objects = env.domains["py"].objects
        if full in objects:
            entry = objects[full]
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content, full
            )
        return None
    # of jaxtyping, as in Float[Array, '*batch n d']
    is_shape = "'" in target or target in ("...", "None")
    return content if is_shape or _exists(target) else None


@functools.cache
def _exists(target: str) -> bool:
    """Returns whether a name without a page exists in this library, Python, or a
    package that it builds on."""
    root, _, rest = target.partition(".")
    if root == "unroll_jax" or root in OTHERS or root in _ALIASES:
        return _has(importlib.import_module(_ALIASES.get(root, root)), rest)
    if not rest and (hasattr(builtins, target) or target in _borrowed()):
        return True
    return any(
        _has(module, target)
        for module in (*_modules(), *map(importlib.import_module, APPLICATION))
    )


_ALIASES = {"jnp": "jax.numpy", "np": "numpy", "nn": "flax.linen", "lax": "jax.lax"}


def _has(module: Any, path: str) -> bool:
    value = module
    for part in filter(None, path.split(".")):
        if not hasattr(value, part):
            try:
                value = importlib.import_module(f"{value.__name__}.{part}")
            except (ImportError, AttributeError):
                return part in getattr(value, "__annotations__", {})
        else:
            value = getattr(value, part)
    return True


@functools.cache
def _modules() -> tuple[Any, ...]:
    walked = (
        module.name
        for module in pkgutil.walk_packages(unroll_jax.__path__, "unroll_jax.")
    )
    library = (name for name in walked if not name.startswith("unroll_jax.train"))
    return (unroll_jax, *map(importlib.import_module, library))


@functools.cache
def _borrowed() -> frozenset[str]:
    """Names of other packages that signatures have without their package."""
    modules = [
        importlib.import_module(name)
        for name in ("jaxtyping", "typing", "collections.abc", "jax", "numpy")
    ]
    return frozenset(name for module in modules for name in dir(module))


def _describe(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Gives a table or constant words of its own in place of those of its type."""
    if what == "data":
        lines[:] = _words(name, value)


def _words(full: str, value: Any) -> list[str]:
    """Describes a table or constant: its entries, value or type."""
    if isinstance(value, Mapping):
        held = "Entries: " + ", ".join(f"``{key}``" for key in value) + "."
    elif isinstance(value, tuple):
        held = "Values: " + ", ".join(f"``{entry!r}``" for entry in value) + "."
    elif isinstance(value, int):
        held = f"Value: ``{value}``."
    else:
        held = f"Type: ``{re.sub(r'[a-z_]+[.]', '', str(value))}``."
    return [*_comment(full, value), "", held, *_example(full.rpartition(".")[2])]


def _example(name: str) -> list[str]:
    """The example of the package that a table or constant occurs in; none of a type."""
    for module in MODULES:
        _, _, shown = inspect.cleandoc(
            importlib.import_module(module).__doc__ or ""
        ).partition("\nExample:\n")
        if re.search(rf"\b{name}\b", shown):
            return [
                "",
                ".. rubric:: Example",
                "",
                *textwrap.dedent(shown).splitlines(),
                "",
            ]
    return []


def _comment(full: str, value: Any) -> list[str]:
    """The ``#:`` comment of a name, wherever in the library it is defined."""
    name = full.rpartition(".")[2]
    for module in _modules():
        if getattr(module, name, None) is value and _assigns(module.__name__, name):
            described = (
                ModuleAnalyzer.for_module(module.__name__)
                .find_attr_docs()
                .get(("", name))
            )
            if described:
                return described
    raise LookupError(
        f"{full} has no words of its own; write a comment that begins with #: above its"
        " definition"
    )


def _assigns(module: str, name: str) -> bool:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    targets = [
        (
            node.targets
            if isinstance(node, ast.Assign)
            else [getattr(node, "target", None)]
        )
        for node in tree.body
    ]
    return any(
        isinstance(target, ast.Name) and target.id == name
        for group in targets
        for target in group
    )
