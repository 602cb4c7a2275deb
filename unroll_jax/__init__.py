"""Layers that are descent steps on an energy.

`__init__.pyi` lists the public names. Each is imported on first use: the command line
answers without JAX.
"""

import lazy_loader

__version__ = "0.4.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
