"""The precision that products are computed in, where results must be known to more than three digits."""

import contextlib
from collections.abc import Iterator

import jax

__all__ = ["full_precision"]


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Takes products of float32 in full, as GPUs and TPUs do not by default, unless the user has set a precision."""
    if jax.default_matmul_precision.value is None:
        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield
