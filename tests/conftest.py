"""What every test stands on: types checked at run time, fixed keys, and float64 where a test asks for it."""

import itertools
import os
from collections.abc import Callable, Iterator

import jaxtyping
import pytest

# Most of the time goes into compiling many small programs; without fusion emitters and LLVM's optimisation that takes
# half as long. `XLA_FLAGS= make test` runs the programs that users get.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")

# Before anything imports the library: from here on beartype checks its annotations, shapes and dtypes included.
jaxtyping.install_import_hook("unroll_jax", "beartype.beartype")

import jax  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks are slow. Files with slow tests come first: at the end, one worker would have to wait for the other."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def getkey() -> Callable[[], jax.Array]:
    """A new random key at every call, the same ones in every run; of the generator that compiles quickest."""
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
