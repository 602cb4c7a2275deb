"""The training application: `unroll-jax`; from Python `fit`, `load` and your own tasks.

`__init__.pyi` lists the public names. Each is imported on first use: the command line
answers without JAX.

Example:
  >>> from unroll_jax.train import EXPERIMENTS
  >>> EXPERIMENTS["demo"].config.task  # `fit("demo")` trains it
  'image-sets'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
