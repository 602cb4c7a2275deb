"""Nonlinearities as proximal operators of convex penalties, named in `PROXIMALS`."""

__all__: list[str] = []
