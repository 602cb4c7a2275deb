"""The ground of every test: types checked at run time, fixed keys, and float64 where
a test asks for it."""

import functools
import gc
import importlib.util
import itertools
import os
import re
import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import settings

from .xla_flags import flags, unknown_flags

os.environ.setdefault("XLA_FLAGS", flags())
# Workers and the processes that tests start read each other's programs. .ci/run names a
# folder that its passes share.
OWN_PROGRAMS = "JAX_COMPILATION_CACHE_DIR" not in os.environ
if OWN_PROGRAMS:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(
        prefix="unroll_jax-programs-"
    )
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# The same examples in every run of CI; elsewhere new ones, which may find more. Slow
# compilation is not a failure.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("elsewhere", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile("ci" if "CI" in os.environ else "elsewhere")
# Before anything imports the library: from here on beartype checks its annotations,
# shapes and dtypes included.
PACKAGE = Path(__file__).resolve().parents[1] / "unroll_jax"
# Folders of tests of the application that nobody has run under strict promotion yet.
STANDARD = {
    "benchmarks",
    "data",
    "hostile",
    "image_sets",
    "language",
    "papers",
    "report",
    "sharding",
    "sparse_coding",
    "train",
}
ROOMS = [
    f"unroll_jax.{path.stem}"
    for path in PACKAGE.iterdir()
    if path.stem not in ("train", "__init__")
]
jaxtyping.install_import_hook(ROOMS, "beartype.beartype")
always = jaxtyping.jaxtyped
made: Counter[Any] = Counter()


def at_first(*args: Any, **options: Any) -> Callable[[Any], Any]:
    """jaxtyping's decorator, for the first functions of each definition. Every step is
    a function within a function: each call of the outer one would make its checks
    again, a tenth of the time of all tests."""
    check = always(*args, **options)

    def decorate(definition: Any) -> Any:
        code = getattr(definition, "__code__", definition)
        made[code] += 1
        return check(definition) if made[code] <= 4 else definition

    return decorate


jaxtyping.jaxtyped = at_first
import jax  # noqa: E402

from .programs import Programs  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--programs",
        action="store_true",
        help="print the programs that each file compiles, and their seconds",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Stops before the first array if this jaxlib ends processes that have XLA_FLAGS
    as they are set."""
    if config.getoption("--programs", default=False):
        config.pluginmanager.register(Programs())
    if (
        not hasattr(config, "workerinput")
        and (reason := unknown_flags(os.environ["XLA_FLAGS"])) is not None
    ):
        pytest.exit(reason, returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks notebooks slow and benchmarks nightly, which are slow, too. Puts the long
    ones first, while other workers are busy."""
    for item in items:
        if item.path.parent.name == "benchmarks":
            item.add_marker(pytest.mark.nightly)
        if item.path.suffix == ".ipynb" or item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
    yield  # to the choice by marks
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: (
            item.path not in slow,
            item.get_closest_marker("xdist_group") is None,
        )
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Sets strict promotion of dtypes, which users may set, and skips comparisons with
    packages that are missing."""
    # Slow tests are whole runs, pages and benchmarks, as they are for users. Fixtures
    # of modules are set up after this.
    marks = map(item.get_closest_marker, ("slow", "standard_promotion"))
    folders = item.path.relative_to(PACKAGE.parent).parts
    is_standard = any(marks) or not STANDARD.isdisjoint(folders)
    promotion = "standard" if is_standard else "strict"
    jax.config.update("jax_numpy_dtype_promotion", promotion)

    packages = [
        package for mark in item.iter_markers("oracle") for package in mark.args
    ]
    if missing := [
        package for package in packages if importlib.util.find_spec(package) is None
    ]:
        pytest.skip(
            f"{' and '.join(missing)} not installed; make test-oracles has what tests"
            " compare with"
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes lasting objects for the garbage collector, which then runs rarely:
    programs are millions of objects."""
    del session
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


GROUP = re.compile(r'xdist_group\("([\w-]+)"\)')


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives a group, or else a file, to one worker: its tests share fixtures and
    compiled programs."""
    from xdist.scheduler import LoadGroupScheduling

    # Read from the file: xdist 3.8 adds groups to the names of tests, which pytest 9.2
    # ignores.
    @functools.cache
    def group_of(file: str) -> str:
        text = (config.rootpath / file).read_text("utf-8")
        groups = GROUP.findall(text)
        assert len(groups) == text.count("xdist_group"), f'{file}: xdist_group("NAME")'
        return groups[0] if groups else file

    class Groups(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    return Groups(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the CPU time of all workers and of the processes that tests started."""
    spent = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    terminalreporter.write_line(
        f"{sum(each.ru_utime + each.ru_stime for each in spent):.0f} s of CPU"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    if OWN_PROGRAMS and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture
def getkey() -> Callable[[], jax.Array]:
    """A new random key at every call, the same ones in every run; of the generator
    that compiles quickest."""
    root, count = jax.random.key(20, impl="rbg"), itertools.count()
    return lambda: jax.random.fold_in(root, next(count))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Types unchecked, as users run the library: its own messages are under test."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
