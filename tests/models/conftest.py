"""These tests compile much and compute little."""

import jax
import pytest


@pytest.fixture(autouse=True)
def few_optimisations():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
