"""Networks of the comparison tables.

Monotone operators, neural ODE, plain and fully convolutional.
"""

__all__: list[str] = []
