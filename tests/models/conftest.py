"""As in tests/fixed_point: these tests compile much and compute little."""

from tests.fixed_point.conftest import few_optimisations

__all__ = ["few_optimisations"]
