"""Stands before torch on the path of started processes, which do not use it.

TensorBoard's writer imports torch where it is installed, here as an oracle of tests; that takes longer than the rest of
a start.
"""

raise ImportError("torch is left out: see tests/without_torch/torch.py")
