"""Evaluated runs as reports read them: checked, comparable, and grouped by what sets them apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, one_line
from ..metrics import read_metrics
from ..registry import OWN_REPORT, TASKS, ReportSpec
from ..system.files import WRITTEN, no_run, read_object, way_out

Array = NDArray[np.float64]

METHODS = ("erm", "deep_supervision", "constrained")
PER_LAYER = ("layer_losses", "bounds", "violations", "multipliers", "slacks", "complementary_slackness")
PER_STEP = ("descend_share", "mean_ratio")
SCALARS = ("train_gamma", "tolerance", "share_descending", "mean_ratio_all", "train_seconds")
OTHERS = ("experiment", "method", "num_layers", "seed", "feasible", "test_gammas", "ratio_histogram")
# The evaluation of a user's task that has these figures is reported by layer.
LAYERED = {"method", "num_examples", "loss", "layer_losses", "bounds"}
# Noise of the same strength on the same clips differs by well under 1% between noise seeds; more is other clips.
NOISY_RTOL, NOISY_ATOL = 0.02, 0.05


@dataclass(frozen=True)
class Run:
    """One evaluated run: its files, and how its task is reported; ``spec`` is None for figures without layers."""

    folder: Path
    config: dict[str, Any]
    status: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
    spec: ReportSpec | None

    @property
    def name(self) -> str:
        """Folder name without its parents."""
        return self.folder.resolve().name

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind: train or validation."""
        return [row for row in self.metrics if row["kind"] == kind]

    def summary(self) -> dict[str, Any]:
        """Its row of summary.json: how it ended, and its evaluation."""
        status = {key: self.status.get(key) for key in ("state", "steps", "compile_seconds", "messages")}
        return {"run": self.name, **status, **self.evaluation}


@dataclass(frozen=True)
class LayeredRun(Run):
    """A run whose layers have losses; ``curves`` holds columns of metrics.jsonl, by kind of row and name."""

    spec: ReportSpec
    curves: dict[str, dict[str, Array]]

    @property
    def method(self) -> str:
        """One of `METHODS`."""
        return self.evaluation["method"]

    @property
    def gammas(self) -> list[str]:
        """Test gammas as written in the file, in rising order; that of training is among them."""
        return sorted(self.evaluation[self.spec.metric], key=float)

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
    """The evaluated runs in folders, each given once.

    Raises:
      UserError: naming a folder or file that is missing, damaged or not of an evaluated run.
    """
    if not folders:
        raise UserError("report needs at least one run folder, got none; give folders such as runs/NAME")
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"run folder {folder} is given twice; give each run once")
        seen.add(folder.resolve())
        if not folder.is_dir():
            raise UserError(f"run folder {folder} does not exist; {WRITTEN}")
        if not (folder / "config.json").is_file():
            raise UserError(no_run(folder))
        if not (folder / "evaluation.json").is_file():
            raise UserError(f"run {folder} has no evaluation.json; run `unroll-jax evaluate {folder}` first")
        if not (folder / "metrics.jsonl").is_file():
            raise UserError(f"run {folder} has no metrics.jsonl; restore it: without it there are no curves")
    return [_read(folder) for folder in folders]


def check_layered(runs: Sequence[Run]) -> list[LayeredRun]:
    """The runs with checked figures of their layers, which must be comparable with each other."""
    checked = [_layered(run) for run in runs]
    _check_comparable(checked)
    return checked


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config as one dict with dotted names."""
    items: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        items.update(flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return items


def floats(values: Any) -> Array:
    """A number, a list, or a list of lists as floats; None and infinities become NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _read(folder: Path) -> Run:
    config, status, evaluation = (read_object(folder / f"{name}.json") for name in ("config", "status", "evaluation"))
    row = TASKS.get(str(config.get("task")))
    layered = OWN_REPORT if evaluation.keys() >= LAYERED else None
    spec = row.report if row is not None and row.functions is not None else layered
    return Run(folder, config, status, evaluation, read_metrics(folder / "metrics.jsonl"), spec)


def _layered(run: Run) -> LayeredRun:
    path, evaluation, spec = run.folder / "evaluation.json", run.evaluation, run.spec
    if spec is None or spec.measures is not None:
        raise UserError(f"{run.folder} has no losses of layers; report it apart")
    for key in (*OTHERS, spec.metric, spec.tested, *filter(None, [spec.baseline]), *PER_LAYER, *PER_STEP, *SCALARS):
        if key not in evaluation:
            raise UserError(f"{path} lacks {key!r}; {way_out(path)}")
    if evaluation["method"] not in METHODS:
        raise UserError(f"{path}: method {evaluation['method']!r} is unknown, must be one of {', '.join(METHODS)}")
    try:
        _check_shapes(evaluation, spec)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {way_out(path)}") from None
    return LayeredRun(**{**vars(run), "spec": spec}, curves=_curves(run))


def _check_shapes(evaluation: dict[str, Any], spec: ReportSpec) -> None:
    layers = evaluation["num_layers"]
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(f"num_layers must be a positive integer, got {layers!r}")
    numbered = {"layers": layers + 1} if "layers" in evaluation else {}
    for key, length in (numbered | dict.fromkeys(PER_LAYER, layers + 1) | dict.fromkeys(PER_STEP, layers)).items():
        if floats(evaluation[key]).shape != (length,):
            raise ValueError(f"{key} must hold {length} numbers for {layers} layers, got {len(evaluation[key])}")
    floats([evaluation[key] for key in SCALARS])
    scores, floors = evaluation[spec.metric], evaluation.get("floors", {})
    floats([*map(float, scores)])
    for name, column in {spec.metric: scores, "input": evaluation[spec.baseline or spec.metric], **floors}.items():
        if not scores or set(column) != set(scores):
            raise ValueError(f"{name} must hold the same test gammas as {spec.metric}, at least one")
        floats(list(column.values()))
    floats([evaluation["floor_shares"][name] for name in floors])
    edges, counts = (floats(evaluation["ratio_histogram"][name]) for name in ("edges", "counts"))
    if edges.ndim != 1 or len(edges) < 3 or counts.shape != (layers, len(edges) - 1):
        raise ValueError(f"ratio_histogram must hold {layers} rows of one count less than edges, two at least")


def _curves(run: Run) -> dict[str, dict[str, Array]]:
    """Columns of the training and the validation rows: step, loss, and (steps, L + 1) by layer."""
    layers = (run.evaluation["num_layers"] + 1,)
    shapes = {
        "train": {"step": (), "loss": (), "violations": layers, "multipliers": layers},
        "validation": {"step": (), "layer_losses": layers},
    }
    columns = {kind: {name: [] for name in names} for kind, names in shapes.items()}
    for number, row in enumerate(run.metrics, start=1):
        try:
            for name, shape in shapes.get(row["kind"], {}).items():
                value = floats(row[name])
                if value.shape != shape:
                    raise ValueError(f"{name} must hold {shape[0] if shape else 'one'} number{'s' * bool(shape)}")
                columns[row["kind"]][name].append(value)
        except (KeyError, TypeError, ValueError) as error:
            path = run.folder / "metrics.jsonl"
            raise UserError(f"{path} is damaged in line {number} ({one_line(error)}); train the run again") from None
    return {
        kind: {name: floats(columns[kind][name]).reshape(-1, *shape) for name, shape in names.items()}
        for kind, names in shapes.items()
    }


def _check_comparable(runs: Sequence[LayeredRun]) -> None:
    """Raises a UserError for runs of mixed experiments, data sources, test sets or noise."""
    apart, again = "report them separately", "evaluate both again with the same settings"
    first = runs[0]
    checks: tuple[tuple[str, Callable[[LayeredRun], Any], str], ...] = (
        ("experiment", lambda run: run.evaluation["experiment"], apart),
        ("data source", _data_source, apart),
        (f"number of test {first.spec.sample}s", lambda run: run.evaluation[run.spec.tested], again),
        ("test gammas", lambda run: run.evaluation["test_gammas"], again),
        ("the meaning of gamma (--noise)", lambda run: run.evaluation.get("noise", run.config.get("noise")), apart),
        ("edges of ratio histograms", lambda run: run.evaluation["ratio_histogram"]["edges"], again),
    )
    for run in runs[1:]:
        for what, value, mend in checks:
            if value(run) != value(first):
                pair = f"{first.folder} has {value(first)}, {run.folder} has {value(run)}"
                raise UserError(f"runs differ in {what}: {pair}; {mend}")
        if not _same_noise(run, first):
            raise UserError(
                f"{first.folder} and {run.folder} were not tested on the same noisy {first.spec.sample}s (the "
                f"{first.spec.title} of their noisy inputs differs by more than {NOISY_RTOL:.0%}); {again}"
            )


def _same_noise(run: LayeredRun, other: LayeredRun) -> bool:
    """Returns whether the scores of the input itself agree at the levels that both were tested at."""
    key = run.spec.baseline
    if key is None:
        return True
    shared = [gamma for gamma in run.gammas if gamma in other.gammas]
    one, two = (floats([each.evaluation[key][gamma] for gamma in shared]) for each in (run, other))
    return np.allclose(one, two, NOISY_RTOL, NOISY_ATOL, equal_nan=True)


def _data_source(run: Run) -> str:
    data = run.config.get("data")
    data = data if isinstance(data, dict) else {}
    # Only the last part of the root: the same data may lie elsewhere or be spelled relative.
    root = data.get("root")
    return f"{data.get('source', 'unknown')}" + (f" ({Path(str(root)).name})" if root else "")
