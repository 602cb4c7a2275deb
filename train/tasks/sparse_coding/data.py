"""Grey images with their sparse codes in one dictionary: solutions of the Lasso,
prepared once and read in batches."""

import base64
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from PIL import Image

from unroll_jax.energies import ListaParams, lista
from unroll_jax.fixed_point import equilibrium

from ...config.errors import UserError
from ...data.files import SEED, Log
from ...data.pictures import LabelledImages, PictureSet, stored
from ...data.prepared import (
    Dataset,
    Kind,
    Originals,
    Record,
    Records,
    joined,
    open_prepared,
    prepare_from,
)
from ...system.terminal import progress
from ..images.data import cut_images, image_sources, sized
from .options import CodeConfig

CODES = Kind("codes", "1.1.0")
OVERCOMPLETE = 1.2  # atoms per pixel by default (Hadou et al. 2023)
AT_ONCE = 1024  # signals that one program solves
# Of the move of a code in a step of ISTA, relative to the code. Where it is reached,
# codes of learned dictionaries are within 1e-6 of the solution, relative and in
# squares.
TOLERANCE = 1e-7
MAX_STEPS = 5000
# Of dictionary learning: passes over the images at most, and images of a step.
PASSES, IMAGES_A_STEP = 10, 256


class CodeBatch(NamedTuple):
    """Images as rows, uint8 (batch, pixels), and their codes, float32 (batch,
    atoms)."""

    images: np.ndarray
    codes: np.ndarray


class CodeSpec(NamedTuple):
    """Properties of images and codes that a model needs."""

    shape: tuple[int, int, int]  # (height, width, 1) of an image
    dictionary: np.ndarray  # (atoms, pixels), float32, atoms of unit length
    pixel_std: float  # standard deviation of the clean train pixels, in [0, 1]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {
            "shape": list(self.shape),
            "pixel_std": self.pixel_std,
            "dictionary": to_text(self.dictionary),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote. Unknown fields are a TypeError."""
        spec = cls(**values)
        height, width, channels = spec.shape
        numbers = base64.b64decode(values["dictionary"])
        dictionary = np.frombuffer(numbers, "<f4").reshape(-1, height * width)
        return cls((height, width, channels), dictionary, spec.pixel_std)


class CodeData(Dataset[CodeBatch]):
    """Prepared images and codes, with the fields of their spec. ``square_norms`` are
    means of |z|^2 by split."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.spec = self.spec_of(CodeSpec)
        self.square_norms: dict[str, float] = self.facts["square_norms"]

    def _read(self, records: Records, numbers: np.ndarray) -> CodeBatch:
        images, codes = records.read(numbers, "image", "code")
        return CodeBatch(joined(images, -1), joined(codes, -1, dtype=np.float32))


def load(config: CodeConfig, *, log: Log = print) -> CodeData:
    """Opens the images and codes of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), CodeData)


def prepare(config: CodeConfig, *, log: Log = print) -> Path:
    """Prepares the images and codes of a configuration unless they are there, and
    returns their folder."""
    options = [
        f"{config.validation_share:g}",
        config.dictionary,
        config.atoms or "all",
        f"{config.sparsity:g}",
        *sized(config),
    ]
    sources = image_sources(config)
    return prepare_from(sources, config, CODES, _code_records, options=options, log=log)


def to_grey(image: np.ndarray) -> np.ndarray:
    """The grey levels of a uint8 image (height, width, channels) as one row, by the
    luma of ITU-R 601."""
    if image.shape[-1] > 1:
        image = np.asarray(Image.fromarray(image).convert("L"))
    return image.reshape(-1)


def to_text(matrix: np.ndarray) -> str:
    """A matrix as text for JSON: its float32 numbers, little-endian, in base64."""
    return base64.b64encode(matrix.astype("<f4").tobytes()).decode()


def solve_lasso(
    signals: Float[np.ndarray, "samples dim"],
    dictionary: Float[np.ndarray, "atoms dim"],
    sparsity: float,
    max_steps: int,
    tol: float = 1e-30,
) -> tuple[Float[np.ndarray, "samples atoms"], Float[np.ndarray, "samples"]]:
    r"""The codes that minimise :math:`\tfrac12 |x - D^T z|^2 + \lambda |z|_1`, and the
    relative residual of each.

    FISTA starts at 0, restarts where it overshoots, and stops after ``max_steps``
    steps, or when a step moves each code by less than ``tol`` of its size, by default
    never.

    Source: Beck and Teboulle (2009), with the step 1 / |D|_2^2; O'Donoghue and Candes
    (2015) for the restarts.
    """
    atoms, dim = dictionary.shape
    curvature = float(np.linalg.norm(dictionary, 2) ** 2)
    codes, residuals = _solver(dim, atoms, sparsity, curvature, max_steps, tol)(
        dictionary, signals
    )
    return np.asarray(codes), np.asarray(residuals)


def make_dictionary(
    name: Literal["learned", "random"], atoms: int, signals: np.ndarray, sparsity: float
) -> np.ndarray:
    """A dictionary (atoms, dim), float32, of atoms of unit length, the same one for the
    same signals. A learned one is of the signals (samples, dim), with codes of the
    ``sparsity``.
    """
    dim = signals.shape[1]
    if name == "random":
        dictionary = np.random.default_rng(SEED).normal(size=(atoms, dim))
    else:
        dictionary = _learned(atoms, signals, sparsity)
    lengths = np.linalg.norm(dictionary, axis=1, keepdims=True)
    return (dictionary / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(
        np.float32
    )


def lasso_codes(
    signals: np.ndarray, dictionary: np.ndarray, sparsity: float, *, what: str, log: Log
) -> np.ndarray:
    r"""The codes that minimise :math:`\tfrac12 |x - D^T z|^2 + \lambda |z|_1`,
    (samples, atoms), float32. They are fixed points of ISTA, to which FISTA with
    restarts brings each code in float64. x are signals (samples, dim), D is the
    dictionary (atoms, dim). The log names the signals by ``what``.
    """
    with jax.enable_x64(True):
        x, D = signals.astype(np.float64), dictionary.astype(np.float64)
        codes, residuals = solve_lasso(x, D, sparsity, MAX_STEPS, TOLERANCE)
    unmet = int(np.sum(~(residuals <= TOLERANCE)))
    if unmet:
        log(
            f"{unmet} of {len(codes)} codes of {what} are not converged after"
            f" {MAX_STEPS} steps; a larger --data.sparsity converges sooner"
        )
    return codes.astype(np.float32)


def _code_records(
    images: PictureSet[LabelledImages], config: CodeConfig, log: Log
) -> Originals:
    grey = {}
    cut = cut_images(images, config)
    for split, examples in cut.splits.items():
        grey[split] = np.stack([to_grey(image) for image, _ in examples])
    train = grey["train"].astype(np.float32) / 255.0
    pixels = train.shape[1]
    atoms = config.atoms or round(OVERCOMPLETE * pixels)
    log(f"  a {config.dictionary} dictionary of {atoms} atoms of {pixels} pixels")
    dictionary = make_dictionary(config.dictionary, atoms, train, config.sparsity)
    spec = CodeSpec(
        (*cut.shape[:2], 1), dictionary, float(np.std(train, dtype=np.float64))
    )
    facts: Record = {**spec.to_json(), "square_norms": {}}
    splits = {
        split: _records(rows, spec, config.sparsity, split, facts, log)
        for split, rows in grey.items()
    }
    features = {"image": stored((pixels,)), "code": stored((atoms,), np.float32)}
    return Originals(features, splits, facts)


def _records(
    images: np.ndarray,
    spec: CodeSpec,
    sparsity: float,
    split: str,
    facts: Record,
    log: Log,
) -> Iterator[Record]:
    """Yields images with their codes, solved some at a time."""
    total = 0.0
    bar = progress(f"codes of {split}", total=len(images))
    for start in range(0, len(images), AT_ONCE):
        some = images[start : start + AT_ONCE]
        signals = some.astype(np.float32) / 255.0
        codes = lasso_codes(signals, spec.dictionary, sparsity, what=split, log=log)
        total += float(np.sum(np.float64(codes) ** 2))
        bar.update(len(some))
        for image, code in zip(some, codes, strict=True):
            yield {"image": image, "code": code}
    bar.close()
    if not total:
        raise UserError(
            f"at data.sparsity={sparsity:g} every code of {split} is 0; lower it"
        )
    facts["square_norms"][split] = total / len(images)


def _learned(atoms: int, signals: np.ndarray, sparsity: float) -> np.ndarray:
    # takes a second, and is needed only to prepare
    from sklearn.decomposition import MiniBatchDictionaryLearning
    from sklearn.exceptions import ConvergenceWarning

    options: Any = {"alpha": sparsity}  # an int to its annotations
    learning = MiniBatchDictionaryLearning(
        atoms,
        **options,
        max_iter=PASSES,
        batch_size=IMAGES_A_STEP,
        fit_algorithm="cd",
        random_state=SEED,
    )
    with warnings.catch_warnings():
        # codes need not converge while the dictionary moves
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(learning.fit(np.float64(signals)).components_)


@functools.cache
def _solver(
    dim: int, atoms: int, sparsity: float, curvature: float, max_steps: int, tol: float
) -> Callable[[np.ndarray, np.ndarray], tuple[jax.Array, jax.Array]]:
    layer = lista(dim, atoms, sparsity=sparsity, curvature=curvature)

    @jax.jit
    def solve(dictionary: jax.Array, signals: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = jnp.zeros((len(signals), 1, atoms), signals.dtype)
        # A step's Jacobian is symmetric on the active atoms only, which is enough for
        # FISTA.
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
