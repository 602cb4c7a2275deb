"""Layers that are descent steps on an energy.

`__init__.pyi` lists the public names. Each is imported on first use: the command line
answers without JAX.
"""

import sys

import lazy_loader

if "jax" in sys.modules:
    # The library needs it. JAX 0.12 compiles all functions again that were compiled
    # before this import, so it is not left to the first use.
    import jax.extend.core  # noqa: F401

__version__ = "0.4.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
