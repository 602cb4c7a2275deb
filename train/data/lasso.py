"""Dictionaries, and sparse codes of signals in them: solutions of the Lasso, and what few steps come to."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax import equilibrium, lista
from unroll_jax.energies import ListaParams, cosine_dictionary

from .files import Log
from .prepare import with_progress
from .splits import SEED

AT_ONCE = 4096  # signals that one program solves
# Of the move of a code in a step of ISTA, relative to the code; where it is reached, codes of learned dictionaries are
# within 1e-6 of the solution, relative and in squares. Never: an iteration that takes all of its steps.
TOLERANCE, NEVER = 1e-7, 1e-30
MAX_STEPS = 5000
# Of dictionary learning: passes over the images at most, and images of a step.
PASSES, IMAGES_A_STEP = 10, 256


def make_dictionary(
    name: Literal["learned", "random", "cosine"], atoms: int, signals: np.ndarray, sparsity: float
) -> np.ndarray:
    """A dictionary (atoms, dim), float32, of atoms of unit length; the same one for the same signals.

    Args:
      name: learned from the signals, random or cosine.
      atoms: how many.
      signals: (samples, dim) to learn from.
      sparsity: of the codes that it is learned with.
    """
    dim = signals.shape[1]
    if name == "cosine":
        dictionary = cosine_dictionary(atoms, dim)
    elif name == "random":
        dictionary = np.random.default_rng(SEED).normal(size=(atoms, dim))
    else:
        dictionary = _learned(atoms, signals, sparsity)
    lengths = np.linalg.norm(dictionary, axis=1, keepdims=True)
    return (dictionary / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)


def lasso_codes(signals: np.ndarray, dictionary: np.ndarray, sparsity: float, *, what: str, log: Log) -> np.ndarray:
    r"""The codes that minimise :math:`\tfrac12 |x - D^T z|^2 + \lambda |z|_1`, (samples, atoms), float32.

    They are fixed points of ISTA, to which FISTA with restarts brings each code in float64.

    Args:
      signals: x, (samples, dim).
      dictionary: D, (atoms, dim).
      sparsity: lambda.
      what: name of the signals in the log.
      log: of progress.
    """
    parts = np.array_split(signals, -(-len(signals) // AT_ONCE))
    with jax.enable_x64(True):
        D = dictionary.astype(np.float64)
        solve = lambda part: _solve(part.astype(np.float64), D, sparsity, MAX_STEPS, TOLERANCE)  # noqa: E731
        solutions = [solve(part) for part in with_progress(parts, len(parts), f"  {what}: {{}} parts", log)]
    codes, residuals = map(np.concatenate, zip(*solutions, strict=True))
    if unmet := int(np.sum(~(residuals <= TOLERANCE))):
        log(
            f"{unmet} of {len(codes)} codes of {what} are not converged after {MAX_STEPS} steps: the largest relative "
            f"residual is {residuals.max():.1e}; a larger --data.sparsity converges sooner"
        )
    return codes.astype(np.float32)


def fista(
    signals: np.ndarray, dictionary: np.ndarray, sparsity: float, max_steps: int, *, tol: float = NEVER
) -> np.ndarray:
    """The codes (samples, atoms) of signals after so many steps of FISTA from 0, with restarts where it overshoots.

    Source: Beck and Teboulle (2009), with the step 1 / |D|_2^2; O'Donoghue and Candes (2015) for the restarts.
    """
    return _solve(signals, dictionary, sparsity, max_steps, tol)[0]


def _solve(
    signals: np.ndarray, dictionary: np.ndarray, sparsity: float, max_steps: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and the relative residual of each."""
    atoms, dim = dictionary.shape
    curvature = float(np.linalg.norm(dictionary, 2) ** 2)
    codes, residuals = _solver(dim, atoms, sparsity, curvature, max_steps, tol)(dictionary, signals)
    return np.asarray(codes), np.asarray(residuals)


@functools.cache
def _solver(
    dim: int, atoms: int, sparsity: float, curvature: float, max_steps: int, tol: float
) -> Callable[[np.ndarray, np.ndarray], tuple[jax.Array, jax.Array]]:
    layer = lista(dim, atoms, sparsity=sparsity, curvature=curvature)

    @jax.jit
    def solve(dictionary: jax.Array, signals: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = jnp.zeros((len(signals), 1, atoms), signals.dtype)
        # A step's Jacobian is symmetric on the active atoms only, which is enough for FISTA.
        codes, info = equilibrium(
            layer,
            ListaParams(dictionary),
            start,
            signals[:, None],
            solver="accelerated_gradient",
            tol=tol,
            max_steps=max_steps,
            on_failure="accept",
        )
        return codes[:, 0], info.residual

    return solve


def _learned(atoms: int, signals: np.ndarray, sparsity: float) -> np.ndarray:
    from sklearn.decomposition import MiniBatchDictionaryLearning  # takes a second, and is needed only to prepare
    from sklearn.exceptions import ConvergenceWarning

    options: Any = {"alpha": sparsity}  # an int to its annotations
    learning = MiniBatchDictionaryLearning(
        atoms, **options, max_iter=PASSES, batch_size=IMAGES_A_STEP, fit_algorithm="cd", random_state=SEED
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # codes need not converge while the dictionary moves
        return np.asarray(learning.fit(np.float64(signals)).components_)
