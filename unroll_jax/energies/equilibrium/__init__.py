"""Layers with tied weights, whose fixed points minimise a convex function: OptEq and
deep OptEq."""

__all__: list[str] = []
