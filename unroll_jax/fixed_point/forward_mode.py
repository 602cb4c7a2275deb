"""An error that names the way out where forward mode meets a function that has reverse mode alone."""

from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

__all__ = ["WAY_OUT", "reverse_only"]

WAY_OUT = 'pass forward_mode=True for derivatives of any order, or adjoint="unrolled"'


@jax.custom_jvp
def reverse_only(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """The identity. Reverse mode transposes its tangents and never computes one; computing one is an error.

    The `custom_vjp` behind it would refuse as well, but with a message that knows of no way out, and under
    `jax.jacfwd` of a missing rule. In programs compiled before they are differentiated its message may come first.
    """
    return y


@reverse_only.defjvp
def _(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    return reverse_only(primals[0]), _tangent.bind(tangents[0])


def _refuse(*args: Any, **params: Any) -> NoReturn:
    raise TypeError(f"an equilibrium was differentiated in forward mode, which it does where it is asked to; {WAY_OUT}")


_tangent = Primitive("tangent_of_equilibrium")
_tangent.def_abstract_eval(lambda tangent: tangent)
_tangent.def_impl(_refuse)
mlir.register_lowering(_tangent, _refuse)
ad.deflinear2(_tangent, lambda cotangent, tangent: [cotangent])
batching.defvectorized(_tangent)
