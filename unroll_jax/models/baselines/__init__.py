"""Networks of the comparison tables: monotone operators, neural ODE, plain and fully
convolutional."""

__all__: list[str] = []
