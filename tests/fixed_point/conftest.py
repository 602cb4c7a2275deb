"""These tests compile much and compute little: few optimisations, but where the
optimised program is under test."""

import jax
import pytest


@pytest.fixture(autouse=True)
def few_optimisations(request):
    jax.config.update(
        "jax_disable_most_optimizations", "optimised" not in request.fixturenames
    )
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def optimised():
    """For tests of the program that users run: its memory, and what XLA makes of
    tiny numbers."""
