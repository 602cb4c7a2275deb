"""Layers with tied weights, whose fixed points minimise a convex function: OptEq, deep OptEq and the unit layer."""

__all__: list[str] = []
