"""Evaluated runs as reports read them: checked, comparable, and grouped by what sets them apart."""

from collections.abc import Sequence
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
    """A run whose layers have losses; ``curves`` holds columns of the training rows of metrics.jsonl by name."""

    spec: ReportSpec
    curves: dict[str, Array]

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
    """Returns runs with checked figures of their layers, which must be comparable with each other."""
    checked = [_layered(run) for run in runs]
    for run in checked[1:]:
        _check_comparable(checked[0], run)
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


def _curves(run: Run) -> dict[str, Array]:
    """Returns columns of the training rows: the step, and (steps, L + 1) by layer."""
    layers = (run.evaluation["num_layers"] + 1,)
    shapes = {"step": (), "violations": layers, "multipliers": layers}
    columns: dict[str, list[Array]] = {name: [] for name in shapes}
    for number, row in enumerate(run.metrics, start=1):
        try:
            for name, shape in shapes.items() if row["kind"] == "train" else ():
                value = floats(row[name])
                if value.shape != shape:
                    raise ValueError(f"{name} must hold {shape[0] if shape else 'one'} number{'s' * bool(shape)}")
                columns[name].append(value)
        except (KeyError, TypeError, ValueError) as error:
            path = run.folder / "metrics.jsonl"
            raise UserError(f"{path} is damaged in line {number} ({one_line(error)}); train the run again") from None
    return {name: floats(columns[name]).reshape(-1, *shape) for name, shape in shapes.items()}


def _check_comparable(first: LayeredRun, run: LayeredRun) -> None:
    """Raises a UserError for runs of mixed experiments, data sources, test sets or noise."""
    apart, again = "report them separately", "evaluate both again with the same settings"
    tested = f"number of test {first.spec.sample}s"
    one, two = (
        {
            "experiment": (each.evaluation["experiment"], apart),
            "data source": (_data_source(each), apart),
            tested: (each.evaluation[each.spec.tested], again),
            "test gammas": (each.evaluation["test_gammas"], again),
            "the meaning of gamma (--noise)": (each.evaluation.get("noise", each.config.get("noise")), apart),
            "edges of ratio histograms": (each.evaluation["ratio_histogram"]["edges"], again),
        }
        for each in (first, run)
    )
    for name, (value, way) in one.items():
        if two[name][0] != value:
            pair = f"{first.folder} has {value}, {run.folder} has {two[name][0]}"
            raise UserError(f"runs differ in {name}: {pair}; {way}")


def _data_source(run: Run) -> str:
    data = run.config.get("data")
    data = data if isinstance(data, dict) else {}
    # Only the last part of the root: the same data may lie elsewhere or be spelled relative.
    root = data.get("root")
    return f"{data.get('source', 'unknown')}" + (f" ({Path(str(root)).name})" if root else "")
