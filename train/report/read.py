"""Run folders as the report sees them: read, checked, and refused with one clear line when they do not fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError
from train.metrics import read_metrics
from train.report.files import check_folders, one_line, read_object, way_out
from train.report.scores import SCORES, Score

__all__ = ["METHODS", "Curves", "Run", "check_comparable", "read_run", "read_runs"]

METHODS = ("erm", "constrained")
PER_LAYER = ("layer_losses", "bounds", "violations", "multipliers", "slacks", "complementary_slackness")
PER_STEP = ("descend_share", "mean_ratio")
SCALARS = ("train_gamma", "tolerance", "share_descending", "mean_ratio_all", "train_seconds")
OTHERS = ("experiment", "method", "num_layers", "seed", "feasible", "test_gammas")
# Noise of the same strength on the same clips differs by well under 1% between noise seeds; more is other clips.
NOISY_RTOL, NOISY_ATOL = 0.02, 0.05

Array = NDArray[np.float64]


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
class Run:
    """One evaluated run; ``evaluation`` has passed `read_run`'s checks."""

    folder: Path
    config: dict[str, Any]
    status: dict[str, Any]
    evaluation: dict[str, Any]
    curves: Curves

    @property
    def name(self) -> str:
        """Folder name without its parents."""
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        """One of `METHODS`."""
        return self.evaluation["method"]

    @property
    def score_name(self) -> str:
        """Which of `SCORES` the run has."""
        return _score_name(self.evaluation)

    @property
    def score(self) -> Score:
        """What that is."""
        return SCORES[self.score_name]

    @property
    def gammas(self) -> list[str]:
        """Test gammas as written in the file, in rising order; that of training is among them."""
        return sorted(self.evaluation[self.score_name], key=float)

    def array(self, key: str) -> Array:
        """A per-layer or per-step list of evaluation.json as floats; null becomes NaN."""
        return _floats(self.evaluation[key])

    def scalar(self, key: str) -> float:
        """A number of evaluation.json; null becomes NaN."""
        return float(_floats([self.evaluation[key]])[0])

    def scores(self) -> Array:
        """The score at each of `gammas`."""
        return self.by_gamma(self.score_name)

    def by_gamma(self, key: str) -> Array:
        """A mapping of evaluation.json from gammas to numbers, at each of `gammas`."""
        return _floats([self.evaluation[key][gamma] for gamma in self.gammas])


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read every folder and check that the runs can be compared.

    Raises:
      UserError: if there is no folder, one is given twice, unreadable, not evaluated, or does not fit the others.
    """
    check_folders(folders)
    runs = [read_run(folder) for folder in folders]
    check_comparable(runs)
    return runs


def read_run(folder: Path) -> Run:
    """Read one run folder.

    Raises:
      UserError: if a file is missing, damaged, or lacks a key the report needs.
    """
    evaluation = read_object(folder / "evaluation.json")
    _check_evaluation(evaluation, folder)
    return Run(
        folder=folder,
        config=read_object(folder / "config.json"),
        status=read_object(folder / "status.json"),
        evaluation=evaluation,
        curves=_read_curves(folder / "metrics.jsonl", evaluation["num_layers"]),
    )


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs of mixed experiments, data sources, test sets or noise: one table of them would mislead.

    Raises:
      UserError: naming the first run that does not fit, in what, and the way out.
    """
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
    """Whether what the score was without the model agrees, at the levels that both were tested at."""
    before = run.score.baseline
    if before is None:
        return True
    shared = [gamma for gamma in run.gammas if gamma in other.gammas]
    one, two = (_floats([each.evaluation[before][gamma] for gamma in shared]) for each in (run, other))
    return np.allclose(one, two, NOISY_RTOL, NOISY_ATOL, equal_nan=True)


def _data_source(run: Run) -> str:
    data = run.config.get("data")
    data = data if isinstance(data, dict) else {}
    # Only the last part of the root: the same data may lie elsewhere or be spelled relative.
    root = data.get("root")
    return f"{data.get('source', 'unknown')}" + (f" ({Path(str(root)).name})" if root else "")


def _score_name(evaluation: dict[str, Any]) -> str:
    """The first of `SCORES` that is there; where none is, the first."""
    return next((name for name in SCORES if name in evaluation), next(iter(SCORES)))


def _check_evaluation(evaluation: dict[str, Any], folder: Path) -> None:
    path = folder / "evaluation.json"
    name = _score_name(evaluation)
    own = [name, SCORES[name].tested, *filter(None, [SCORES[name].baseline])]
    for key in (*OTHERS, *own, *PER_LAYER, *PER_STEP, *SCALARS, "ratio_histogram"):
        if key not in evaluation:
            raise UserError(f"{path} lacks {key!r}; {way_out(path)}")
    if evaluation["method"] not in METHODS:
        raise UserError(f"{path}: method {evaluation['method']!r} is unknown, must be one of {', '.join(METHODS)}")
    try:
        _check_shapes(evaluation)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {way_out(path)}") from None


def _check_shapes(evaluation: dict[str, Any]) -> None:
    layers = evaluation["num_layers"]
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(f"num_layers must be a positive integer, got {layers!r}")
    for keys, length in ((PER_LAYER, layers + 1), (PER_STEP, layers)):
        for key in keys:
            if _floats(evaluation[key]).shape != (length,):
                raise ValueError(f"{key} must hold {length} numbers for {layers} layers, got {len(evaluation[key])}")
    _floats([evaluation[key] for key in SCALARS])
    name = _score_name(evaluation)
    scores = evaluation[name]
    before = evaluation[SCORES[name].baseline or name]
    if not scores or set(scores) != set(before):
        raise ValueError(f"{name} and {SCORES[name].baseline or name} must hold the same test gammas, at least one")
    _floats([*scores.values(), *before.values(), *map(float, scores)])
    edges = _floats(evaluation["ratio_histogram"]["edges"])
    counts = _floats(evaluation["ratio_histogram"]["counts"])
    if edges.ndim != 1 or len(edges) < 3 or counts.shape != (layers, len(edges) - 1):
        raise ValueError(f"ratio_histogram must hold {layers} rows of one count less than edges, two at least")


def _read_curves(path: Path, num_layers: int) -> Curves:
    if not path.is_file():
        raise UserError(f"run {path.parent} has no metrics.jsonl; restore it: without it there are no curves")
    train: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}
    validation: dict[int, Any] = {}
    for number, record in enumerate(read_metrics(path), start=1):
        try:
            if record["kind"] == "train":
                values = ([record["loss"]], record["violations"], record["multipliers"])
                if [_floats(value).shape for value in values] != [(1,), (num_layers + 1,), (num_layers + 1,)]:
                    raise ValueError(f"violations and multipliers must hold {num_layers + 1} numbers each")
                train[int(record["step"])] = values
            elif record["kind"] == "validation":
                validation[int(record["step"])] = record["layer_losses"][-1]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged in line {number} ({one_line(error)}); train the run again") from None
    return Curves(
        steps=np.asarray(list(train), np.int64),
        loss=_floats([loss[0] for loss, _, _ in train.values()]),
        violations=_floats([row for _, row, _ in train.values()]).reshape(-1, num_layers + 1),
        multipliers=_floats([row for _, _, row in train.values()]).reshape(-1, num_layers + 1),
        validation_steps=np.asarray(list(validation), np.int64),
        validation_loss=_floats(list(validation.values())),
    )


def _floats(values: Sequence[Any]) -> Array:
    """Floats of a list or list of lists; what is not a finite number (None, inf) becomes NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)
