"""Where compiled programs are kept, so that the same one is compiled once."""

import os
from pathlib import Path

import jax

__all__ = ["keep_programs"]


def keep_programs() -> None:
    """Keeps programs that took a second or more to compile under ~/.cache/unroll_jax/compiled.

    JAX's own setting comes first: JAX_COMPILATION_CACHE_DIR names another folder, or "" for none.
    """
    setting = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and setting is None:
        folder = Path("~/.cache/unroll_jax/compiled").expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
