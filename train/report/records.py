"""Evaluated runs as reports read them: checked and comparable with each other."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, one_line
from ..metrics import read_metrics
from ..runs import read_status
from ..system.files import WRITTEN, no_run, read_object, way_out
from .specs import OWN_REPORT, REPORTS, ReportSpec

Array = NDArray[np.float64]

METHODS = {
    "plain": "plain",
    "deep_supervision": "deep supervision",
    "constrained": "constrained",
}
PER_LAYER = (
    "layer_losses",
    "bounds",
    "violations",
    "multipliers",
    "slacks",
    "complementary_slackness",
)
PER_STEP = ("descend_share", "mean_ratio")
SCALARS = (
    "seed",
    "num_layers",
    "train_gamma",
    "tolerance",
    "share_descending",
    "mean_ratio_all",
    "train_seconds",
)
# The evaluation of a user's task that has these figures is reported by layer.
LAYERED = {"method", "num_examples", "loss", "layer_losses", "bounds"}


@dataclass(frozen=True)
class Run:
    """One evaluated run: its files, and how its task is reported; not ``layered``
    where layers have no losses."""

    folder: Path
    config: dict[str, Any]
    status: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
    spec: ReportSpec
    layered: bool

    @property
    def name(self) -> str:
        """Folder name without its parents."""
        return self.folder.resolve().name

    @property
    def gammas(self) -> list[str]:
        """Test gammas as written in the file, in rising order; the gamma of training
        is among them."""
        return sorted(self.evaluation[self.spec.metric], key=float)

    def values(self, key: str) -> Array:
        """A number or list of evaluation.json, or its number at each of `gammas`;
        null becomes NaN."""
        return self.at_gammas(self.evaluation[key])

    def at_gammas(self, value: Any) -> Array:
        """Numbers as floats, those by gamma in the order of `gammas`."""
        return floats(
            [value[gamma] for gamma in self.gammas]
            if isinstance(value, dict)
            else value
        )

    @functools.cached_property
    def curves(self) -> dict[str, Array]:
        """Columns of the training rows of metrics.jsonl by name: the step, and
        (steps, L + 1) by layer."""
        return self._columns("train", "layer_losses", "violations", "multipliers")

    @functools.cached_property
    def validations(self) -> dict[str, Array]:
        """The same of the validation rows, all of the same samples and noise: the
        step, and losses by layer."""
        return self._columns("validation", "layer_losses")

    def _columns(self, kind: str, *names: str) -> dict[str, Array]:
        rows, layers = (
            [row for row in self.metrics if row["kind"] == kind],
            self.evaluation["num_layers"] + 1,
        )
        try:
            columns = {
                name: floats([row[name] for row in rows]).reshape(len(rows), layers)
                for name in names
            }
        except (KeyError, TypeError, ValueError) as error:
            path = self.folder / "metrics.jsonl"
            raise UserError(
                f"{path} is damaged ({one_line(error)}); train the run again"
            ) from None
        return columns | {"step": floats([row["step"] for row in rows])}

    @property
    def lost(self) -> list[str]:
        """A sentence on the training steps that metrics.jsonl lacks, if it lacks
        any."""
        done, steps = (
            self.status.get("steps"),
            {row["step"] for row in self.metrics if row["kind"] == "train"},
        )
        sentence = (
            f"{self.name}: metrics.jsonl has {len(steps)} of {done} steps; figures of"
            " training lack the others."
        )
        return [sentence] * (isinstance(done, int) and len(steps) < done)

    def summary(self) -> dict[str, Any]:
        """Its row of summary.json: how it ended, and its evaluation."""
        status = {
            key: self.status.get(key)
            for key in ("state", "steps", "compile_seconds", "messages")
        }
        return {"run": self.name, **status, **self.evaluation}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads the evaluated runs in folders, each given once, and checks that they can
    be compared."""
    if not folders:
        raise UserError(
            "report needs at least one run folder, got none; give folders such as"
            " runs/NAME"
        )
    for folder in folders:
        if [other.resolve() for other in folders].count(folder.resolve()) > 1:
            raise UserError(f"run folder {folder} is given twice; give each run once")
        if not (folder / "config.json").is_file():
            raise UserError(
                no_run(folder)
                if folder.is_dir()
                else f"run folder {folder} does not exist; {WRITTEN}"
            )
        if not (folder / "metrics.jsonl").is_file():
            raise UserError(f"run {folder} has no metrics.jsonl; restore it first")
    runs = [_read(folder) for folder in folders]
    first, tested = runs[0], _tested(runs[0])
    for run in runs:
        for name, value in _tested(run).items():
            if tested.get(name) != value:
                raise UserError(
                    f"runs differ in {name}: {first.folder} has {tested.get(name)},"
                    f" {run.folder} has {value}; report them separately"
                )
    return runs


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config as one dict with dotted names."""
    items: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        items.update(
            flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
        )
    return items


def floats(values: Any) -> Array:
    """A number, a list, or a list of lists as floats; None and infinities become
    NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _read(folder: Path) -> Run:
    missing = (
        f"run {folder} has no evaluation.json; run `unroll-jax evaluate {folder}` first"
    )
    evaluation = read_object(folder / "evaluation.json", missing=missing)
    config, status = (
        read_object(folder / "config.json"),
        read_status(folder) or read_object(folder / "status.json"),
    )
    spec = REPORTS.get(str(config.get("task")), OWN_REPORT)
    layered = spec.layered and (spec is not OWN_REPORT or evaluation.keys() >= LAYERED)
    run = Run(
        folder,
        config,
        status,
        evaluation,
        read_metrics(folder / "metrics.jsonl"),
        spec,
        layered,
    )
    try:
        _check_layers(run) if layered else None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        path = folder / "evaluation.json"
        raise UserError(
            f"{path} is damaged ({one_line(error)}); {way_out(path)}"
        ) from None
    return run


def _check_layers(run: Run) -> None:
    evaluation, spec, layers = run.evaluation, run.spec, run.evaluation["num_layers"]
    if evaluation["method"] not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)}, got {evaluation['method']!r}"
        )
    shapes = (
        dict.fromkeys(SCALARS, ())
        | dict.fromkeys(PER_LAYER, (layers + 1,))
        | dict.fromkeys(PER_STEP, (layers,))
    )
    shapes |= dict.fromkeys(
        (spec.metric, spec.baseline or spec.metric), (len(run.gammas),)
    )
    for key, shape in (
        shapes | ({"layers": (layers + 1,)} if "layers" in evaluation else {})
    ).items():
        if run.values(key).shape != shape or 0 in shape:
            raise ValueError(
                f"{key} must be {shape[0] if shape else 'one'}"
                f" number{'s' * bool(shape)}"
            )
    for scores in evaluation.get("floors", {}).values():
        run.at_gammas(scores)
    for key in ("experiment", "feasible", spec.tested):
        evaluation[key]  # missing ones are a KeyError
    run.values("test_gammas")
    edges, counts = (
        floats(evaluation["ratio_histogram"][name]) for name in ("edges", "counts")
    )
    if edges.ndim != 1 or len(edges) < 3 or counts.shape != (layers, len(edges) - 1):
        raise ValueError(
            f"ratio_histogram must hold {layers} rows of one count less than edges, two"
            " at least"
        )


def _tested(run: Run) -> dict[str, Any]:
    """Returns what runs of one report share, by the words for it: kind, data, test
    and noise."""
    data, evaluation = run.config.get("data"), run.evaluation
    data = data if isinstance(data, dict) else {}
    judged = run.layered or not run.spec.layered
    tested = {
        "kind of experiment": run.spec.title if judged else run.config.get("task"),
        "data.source": data.get("source"),
        # the same data may lie elsewhere or be spelled relative
        "data.root": Path(str(data.get("root"))).name,
        "data.reduction": data.get("reduction"),
        "class_names": evaluation.get("class_names"),
        "number of test samples": evaluation.get(run.spec.tested),
    }
    if run.layered:
        tested |= {name: evaluation[name] for name in ("experiment", "test_gammas")}
        tested["the meaning of gamma (--noise)"] = evaluation.get(
            "noise", run.config.get("noise")
        )
        tested["edges of ratio histograms"] = evaluation["ratio_histogram"]["edges"]
    return tested
