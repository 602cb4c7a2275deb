"""OptEq and deep OptEq: layers whose fixed points minimise a convex function."""

__all__: list[str] = []
