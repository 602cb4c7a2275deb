"""Runs of constrained training: records whose figures of layers are checked, and that compare with each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, one_line
from ..system.files import way_out
from . import record
from .record import Array, floats

METHODS = ("erm", "deep_supervision", "constrained")
PER_LAYER = ("layer_losses", "bounds", "violations", "multipliers", "slacks", "complementary_slackness")
PER_STEP = ("descend_share", "mean_ratio")
SCALARS = ("train_gamma", "tolerance", "share_descending", "mean_ratio_all", "train_seconds")
OTHERS = ("experiment", "method", "num_layers", "seed", "feasible", "test_gammas")
# Noise of the same strength on the same clips differs by well under 1% between noise seeds; more is other clips.
NOISY_RTOL, NOISY_ATOL = 0.02, 0.05


class Score(NamedTuple):
    """The score of runs at every test gamma: its key in evaluation.json, and that of the number tested."""

    name: str
    label: str
    tested: str
    unit: str
    baseline: str | None = None  # the key of the same score of the input itself
    title: str = "RMSE"  # in words and tables
    digits: int = 2


RMSE = Score("rmse", "RMSE (0-255 scale)", "num_sequences", "sequences", "noisy_rmse")
ACCURACY = Score("accuracy", "accuracy", "num_examples", "examples", title="Accuracy (%)")
LOSS = Score("loss", "loss of the last layer", "num_examples", "examples", title="loss")  # of a task of the user's own
CODES = Score(
    "relative_error", "relative error of the codes", "num_examples", "images", title="relative error", digits=3
)


@dataclass(frozen=True)
class Curves:
    """Training history; ``violations`` and ``multipliers`` have shape (steps, L + 1), ``validation_loss`` is f_L."""

    steps: NDArray[np.int64]
    loss: Array
    violations: Array
    multipliers: Array
    validation_steps: NDArray[np.int64]
    validation_loss: Array


@dataclass(frozen=True)
class Run(record.Run):
    """One run of constrained training, checked by `read_runs`."""

    curves: Curves

    @property
    def method(self) -> str:
        """One of `METHODS`."""
        return self.evaluation["method"]

    @property
    def score(self) -> Score:
        """`RMSE`, `CODES`, `ACCURACY` or `LOSS`."""
        return _score(self.evaluation)

    @property
    def gammas(self) -> list[str]:
        """Test gammas as written in the file, in rising order; that of training is among them."""
        return sorted(self.evaluation[self.score.name], key=float)

    @property
    def floors(self) -> dict[str, Array]:
        """Scores that need no network at each of `gammas`, by name; empty where the evaluation has none."""
        floors = self.evaluation.get("floors", {})
        return {name: floats([scores[gamma] for gamma in self.gammas]) for name, scores in floors.items()}

    def values(self, key: str) -> Array:
        """A number or list of evaluation.json, or its number at each of `gammas`; null becomes NaN."""
        value = self.evaluation[key]
        return floats([value[gamma] for gamma in self.gammas] if isinstance(value, dict) else value)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of constrained training in folders, which must be comparable with each other."""
    runs = [_checked(run) for run in record.read_runs(folders)]
    check_comparable(runs)
    return runs


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuses runs of mixed experiments, data sources, test sets or noise: one table of them would mislead."""
    apart, again = "report them separately", "evaluate both again with the same settings"
    checks: tuple[tuple[str, Callable[[Run], Any], str], ...] = (
        ("experiment", lambda run: run.evaluation["experiment"], apart),
        ("data source", _data_source, apart),
        (f"number of test {runs[0].score.unit}", lambda run: run.evaluation[run.score.tested], again),
        ("test gammas", lambda run: run.evaluation["test_gammas"], again),
        ("the meaning of gamma (--noise)", lambda run: run.evaluation.get("noise", run.config.get("noise")), apart),
    )
    first = runs[0]
    for run in runs[1:]:
        for what, value, mend in checks:
            if value(run) != value(first):
                pair = f"{first.folder} has {value(first)}, {run.folder} has {value(run)}"
                raise UserError(f"runs differ in {what}: {pair}; {mend}")
        if not _same_noise(run, first):
            raise UserError(
                f"{first.folder} and {run.folder} were not tested on the same noisy clips (the RMSE of their noisy "
                f"inputs differs by more than {NOISY_RTOL:.0%}); {again}"
            )
        if run.evaluation["ratio_histogram"]["edges"] != first.evaluation["ratio_histogram"]["edges"]:
            raise UserError(f"{first.folder} and {run.folder} have ratio histograms with different edges; {again}")


def _same_noise(run: Run, other: Run) -> bool:
    """Returns whether the scores of the input itself agree, at the levels that both were tested at."""
    before = run.score.baseline
    if before is None:
        return True
    shared = [gamma for gamma in run.gammas if gamma in other.gammas]
    one, two = (floats([each.evaluation[before][gamma] for gamma in shared]) for each in (run, other))
    return np.allclose(one, two, NOISY_RTOL, NOISY_ATOL, equal_nan=True)


def _data_source(run: Run) -> str:
    data = run.config.get("data")
    data = data if isinstance(data, dict) else {}
    # Only the last part of the root: the same data may lie elsewhere or be spelled relative.
    root = data.get("root")
    return f"{data.get('source', 'unknown')}" + (f" ({Path(str(root)).name})" if root else "")


def _score(evaluation: dict[str, Any]) -> Score:
    return next((score for score in (RMSE, CODES, ACCURACY, LOSS) if score.name in evaluation), RMSE)


def _checked(run: record.Run) -> Run:
    _check_evaluation(run.evaluation, run.folder / "evaluation.json")
    return Run(**vars(run), curves=_curves(run))


def _check_evaluation(evaluation: dict[str, Any], path: Path) -> None:
    score = _score(evaluation)
    score_keys = (score.name, score.tested, *filter(None, [score.baseline]))
    for key in (*OTHERS, *score_keys, *PER_LAYER, *PER_STEP, *SCALARS, "ratio_histogram"):
        if key not in evaluation:
            raise UserError(f"{path} lacks {key!r}; {way_out(path)}")
    if evaluation["method"] not in METHODS:
        raise UserError(f"{path}: method {evaluation['method']!r} is unknown, must be one of {', '.join(METHODS)}")
    try:
        _check_shapes(evaluation, score)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {way_out(path)}") from None


def _check_shapes(evaluation: dict[str, Any], score: Score) -> None:
    layers = evaluation["num_layers"]
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(f"num_layers must be a positive integer, got {layers!r}")
    for keys, length in ((PER_LAYER, layers + 1), (PER_STEP, layers)):
        for key in keys:
            if floats(evaluation[key]).shape != (length,):
                raise ValueError(f"{key} must hold {length} numbers for {layers} layers, got {len(evaluation[key])}")
    if floats(evaluation.get("layers", range(layers + 1))).shape != (layers + 1,):
        raise ValueError(f"layers must hold {layers + 1} numbers for {layers} layers, got {evaluation['layers']!r:.60}")
    floats([evaluation[key] for key in SCALARS])
    before = score.baseline or score.name
    scores, inputs = evaluation[score.name], evaluation[before]
    if not scores or set(scores) != set(inputs):
        raise ValueError(f"{score.name} and {before} must hold the same test gammas, at least one")
    floats([*scores.values(), *inputs.values(), *map(float, scores)])
    for name, floor in evaluation.get("floors", {}).items():
        if set(floor) != set(scores):
            raise ValueError(f"the floor {name!r} must hold the test gammas of {score.name}")
        floats([*floor.values(), evaluation["floor_shares"][name]])
    edges, counts = (floats(evaluation["ratio_histogram"][name]) for name in ("edges", "counts"))
    if edges.ndim != 1 or len(edges) < 3 or counts.shape != (layers, len(edges) - 1):
        raise ValueError(f"ratio_histogram must hold {layers} rows of one count less than edges, two at least")


def _curves(run: record.Run) -> Curves:
    num_layers = run.evaluation["num_layers"]
    train: dict[int, tuple[float, list[Any], list[Any]]] = {}
    validation: dict[int, Any] = {}
    for number, row in enumerate(run.metrics, start=1):
        try:
            if row["kind"] == "train":
                values = (row["loss"], row["violations"], row["multipliers"])
                if [floats(value).shape for value in values] != [(), (num_layers + 1,), (num_layers + 1,)]:
                    raise ValueError(f"violations and multipliers must hold {num_layers + 1} numbers each")
                train[int(row["step"])] = values
            elif row["kind"] == "validation":
                validation[int(row["step"])] = row["layer_losses"][-1]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            path = run.folder / "metrics.jsonl"
            raise UserError(f"{path} is damaged in line {number} ({one_line(error)}); train the run again") from None
    loss, violations, multipliers = (floats([values[i] for values in train.values()]) for i in range(3))
    layers = (-1, num_layers + 1)
    return Curves(
        np.asarray(list(train), np.int64), loss, violations.reshape(layers), multipliers.reshape(layers),
        np.asarray(list(validation), np.int64), floats(list(validation.values())),
    )  # fmt: skip
