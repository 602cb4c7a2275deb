"""Nonlinearities as proximal operators of convex penalties; `PROXIMALS` names them."""

__all__: list[str] = []
