"""Evaluated runs as reports read them: checked and comparable with each other; what
a report shows of each task."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, one_line
from ..config.options import flat
from ..core.folder import read_status
from ..core.metrics import read_metrics
from ..system.files import RESTORE, WRITTEN, no_run, read_object


class ReportSpec(NamedTuple):
    """The evaluation of a task as its report shows it.

    Attributes:
      metric: key of evaluation.json under which the score is, by test gamma. Of a task
        without layers, a share.
      title: the metric in words.
      work: what networks are trained for, for the first paragraph.
      label: of the metric's axis, with its unit.
      higher_is_better: whether the largest score is the best.
      percent: whether the score is a share, shown in percent.
      digits: behind the decimal point, in tables.
      gamma: the strength of noise on axes, with its unit, empty where a task has no
        noise.
      loss: of the axis of the layers' losses, with its unit.
      tested: key of the number of samples tested.
      baseline: key of the score of the noisy input itself by test gamma. None where
        there is none.
      reference: name, and prefix of the figures, of the reference that disturbances are
        tried on too. None for none.
      note: the definition of the metric.
      layered: whether layers have losses. Else evaluations have a confusion matrix and
        names of classes.
    """

    metric: str
    title: str
    work: str
    label: str
    higher_is_better: bool = False
    percent: bool = False
    digits: int = 2
    gamma: str = "test gamma"
    loss: str = "cross entropy (nats)"
    tested: str = "num_examples"
    baseline: str | None = None
    reference: tuple[str, str] | None = None
    note: str = ""
    layered: bool = True

    @property
    def scale(self) -> float:
        """Factor of scores where they are shown."""
        return 100.0 if self.percent else 1.0

    @property
    def form(self) -> str:
        """Format of scores in tables, times `scale`."""
        return f".{self.digits}f"

    @property
    def heading(self) -> str:
        """The metric in words, with a capital letter and its unit."""
        unit = " (%)" if self.percent else ""
        return f"{self.title[:1].upper()}{self.title[1:]}{unit}"


_VIDEO = ReportSpec(
    "rmse",
    title="RMSE",
    work="to remove noise from video",
    label="RMSE (0-255 scale)",
    gamma="test gamma (variance / data std)",
    loss="loss  ½|x − Φ|²  (pixels in [0, 1])",
    tested="num_sequences",
    baseline="noisy_rmse",
    reference=("input", "input_"),
    note="Root mean squared error of a pixel, on the 0-255 scale; lower is better.",
)
_CODES = ReportSpec(
    "relative_error",
    title="relative error",
    work="to find the sparse codes of images",
    label="relative error  |z − z*|² / |z*|²",
    digits=3,
    gamma="test gamma (deviation / data std)",
    loss="loss  ½|z − z*|²",
    reference=("ISTA", "ista_"),
    note=(
        "Mean of |z − z*|² over that of |z*|², lower is better; all codes zero give 1."
    ),
)
_SETS = _VIDEO._replace(
    metric="half_squared_error",
    title="half squared error",
    work="to remove noise from sets of images",
    label="half squared error  ½|x − Φ|²",
    digits=3,
    tested="num_examples",
    baseline="noisy_half_squared_error",
    reference=None,
    note=(
        "Summed over the pixels of an image, in [0, 1], in the mean of the test images;"
        " lower is better."
    ),
)
_TEXT = ReportSpec(
    "accuracy",
    title="accuracy",
    work="to name the classes of texts",
    label="accuracy on the test texts",
    higher_is_better=True,
    percent=True,
    note=(
        "In percent of the test split, higher is better. Area: under the accuracy over"
        " the test gammas, by trapezoids, not divided by their range."
    ),
)
_LANGUAGE = _TEXT._replace(
    title="token accuracy",
    work="to follow instructions",
    label="share of right tokens of the test answers",
)
_IMAGES = ReportSpec(
    "accuracy",
    title="accuracy",
    work="to name the classes of images",
    label="accuracy %",
    higher_is_better=True,
    percent=True,
    note="In percent of the test split, higher is better.",
    layered=False,
)
_SCENES = _IMAGES._replace(
    metric="intersection_over_union",
    title="mean IoU",
    work="to name the class of every pixel of a scene",
    label="mIoU %",
    note=(
        "Overlap of predicted and true regions over their union, mean of the classes,"
        " in percent; higher is better."
    ),
)
_CERTIFIED = _IMAGES._replace(
    metric="certified",
    title="certified accuracy, mean over the radii",
    work="to name the classes of images, with a guarantee",
    label="certified accuracy %",
    note=(
        "In percent of the test split; higher is better. No"
        " disturbance of a certified image within the radius changes its answer."
    ),
)
OWN_REPORT = ReportSpec(
    "loss",
    title="loss",
    work="for a task of your own",
    label="loss of the last layer",
    digits=4,
    gamma="",
    loss="loss",
    note="Of the last layer, in the mean of the test split; lower is better.",
)

REPORTS: dict[str, ReportSpec] = {
    **dict.fromkeys(("video", "video-dust", "video-vit"), _VIDEO),
    "image-sets": _SETS,
    "sparse-coding": _CODES,
    **dict.fromkeys(("text-encoder", "text-ut"), _TEXT),
    **dict.fromkeys(("image-opteq", "image-mon", "image-ode", "image-dnn"), _IMAGES),
    "certified": _CERTIFIED,
    **dict.fromkeys(("segment-opteq", "segment-fcn"), _SCENES),
    "language": _LANGUAGE,
    "own": OWN_REPORT,
}


Array = NDArray[np.float64]

METHODS = {
    "plain": "plain",
    "deep_supervision": "deep supervision",
    "constrained": "constrained",
}
PER_LAYER = ("layer_losses", "bounds", "violations", "multipliers", "slacks")
# The evaluation of a user's task that has these figures is reported by layer.
LAYERED = {"method", "num_examples", "loss", "layer_losses", "bounds"}


@dataclass(frozen=True)
class Run:
    """One evaluated run: its files, and how its task is reported. Not ``layered``
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
    def experiment(self) -> str:
        """Its name, and after it that of the folder or file of its data, if any."""
        data = Path(flat(self.config).get("data.root") or "").name
        return f"{self.config['experiment']} on {data}".removesuffix(" on ")

    @property
    def gammas(self) -> list[str]:
        """Test gammas as written in the file, in rising order. The gamma of training
        is among them."""
        return sorted(self.evaluation[self.spec.metric], key=float)

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that have a loss, the input's 0 first."""
        every = range(self.evaluation["num_layers"] + 1)
        return list(self.evaluation.get("layers", every))

    def values(self, key: str) -> Array:
        """A number or list of evaluation.json, or its number at each of `gammas`.
        Null becomes NaN."""
        return self.at_gammas(self.evaluation[key])

    def margins(self) -> Array:
        """The room below each bound as a share of it, negative where the bound is
        exceeded."""
        form = self.evaluation.get("form", "difference")
        violations = self.values("violations")
        if form == "difference":
            bounds = self.values("bounds")
            # a bound that is missing or not positive has no margin in percent
            return -violations / np.where(bounds > 0, bounds, np.nan)
        return -violations if form.startswith("ratio") else -np.expm1(violations)

    def at_gammas(self, value: Any) -> Array:
        """Numbers as floats, those by gamma in the order of `gammas`."""
        if isinstance(value, dict):
            value = [value[gamma] for gamma in self.gammas]
        return floats(value)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl of a kind, train or validation."""
        return [row for row in self.metrics if row["kind"] == kind]

    def by_layer(self, kind: str, name: str) -> Array:
        """A column of the rows of a kind, of shape (rows, L + 1)."""
        rows = self.rows(kind)
        with errors_of(self.folder / "metrics.jsonl", "train the run again"):
            values = floats([row[name] for row in rows])
            return values.reshape(len(rows), self.evaluation["num_layers"] + 1)

    def floors(self) -> dict[str, Array]:
        """Scores that need no network at each of `gammas`, by name, the input's
        first."""
        floors = self.evaluation.get("floors", {})
        if self.spec.baseline:
            floors = {"noisy input": self.evaluation[self.spec.baseline], **floors}
        elif self.spec is OWN_REPORT:
            loss = self.evaluation["layer_losses"][0]
            floors = {"embedded input": dict.fromkeys(self.gammas, loss)}
        return {name: self.at_gammas(scores) for name, scores in floors.items()}

    def summary(self) -> dict[str, Any]:
        """Its row of summary.json: how it ended, and its evaluation."""
        names = ("state", "steps", "compile_seconds", "messages")
        ended = {name: self.status.get(name) for name in names}
        return {"run": self.name, **ended, **self.evaluation}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads the evaluated runs in folders, each given once, and checks that they can
    be compared."""
    if not folders:
        raise UserError(
            "report needs at least one run folder, got none; give folders such as"
            " runs/NAME"
        )
    places = set()
    for folder in folders:
        if folder.resolve() in places:
            raise UserError(f"run folder {folder} is given twice; give each run once")
        places.add(folder.resolve())
    runs = [_read(folder) for folder in folders]
    first = runs[0]
    tested = _tested(first)
    for run in runs:
        for name, value in _tested(run).items():
            if tested.get(name) != value:
                raise UserError(
                    f"runs differ in {name}: {first.folder} has {tested.get(name)},"
                    f" {run.folder} has {value}; report them separately"
                )
    return runs


@contextlib.contextmanager
def errors_of(path: Path | str, mend: str = RESTORE) -> Iterator[None]:
    """Raises a UserError that names the file if its values have another form."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {mend}") from error


def floats(values: Any) -> Array:
    """A number, a list, or a list of lists as floats. None and infinities become
    NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _read(folder: Path) -> Run:
    if not folder.exists():
        raise UserError(f"run folder {folder} does not exist; {WRITTEN}")
    if not (folder / "config.json").is_file():
        raise UserError(no_run(folder))
    for name, remedy in (
        ("metrics.jsonl", "restore it"),
        ("evaluation.json", f"run `unroll-jax evaluate {folder}`"),
    ):
        if not (folder / name).is_file():
            raise UserError(f"run {folder} has no {name}; {remedy} first")
    config = read_object(folder / "config.json")
    status = read_status(folder) or read_object(folder / "status.json")
    path = folder / "evaluation.json"
    evaluation = read_object(path)
    metrics = read_metrics(folder / "metrics.jsonl")
    spec = REPORTS.get(str(config.get("task")), OWN_REPORT)
    layered = spec.layered and (spec is not OWN_REPORT or evaluation.keys() >= LAYERED)
    run = Run(folder, config, status, evaluation, metrics, spec, layered)
    with errors_of(path):
        if layered:
            _check_layers(run)
    return run


def _check_layers(run: Run) -> None:
    """Raises an error unless the evaluation has the figures of every layer."""
    evaluation = run.evaluation
    spec = run.spec
    METHODS[evaluation["method"]]  # missing ones are a KeyError
    for key in ("experiment", "seed", "feasible", "tolerance", "test_gammas"):
        evaluation[key]
    layers = evaluation["num_layers"]
    gammas = len(run.gammas)
    sizes: dict[str, int] = dict.fromkeys(PER_LAYER, layers + 1)
    sizes |= {"descend_share": layers, spec.metric: gammas}
    sizes[spec.baseline or spec.metric] = gammas
    for key, size in sizes.items():
        if run.values(key).shape != (size,) or size < 1:
            raise ValueError(f"{key} must be numbers, {size} of them")
    histogram = evaluation["ratio_histogram"]
    bins = len(histogram["edges"]) - 1
    if bins < 2 or floats(histogram["counts"]).shape != (layers, bins):
        raise ValueError(f"ratio_histogram must hold {layers} rows of its bins")


def _tested(run: Run) -> dict[str, Any]:
    """Returns what runs of one report share, by its name: kind, data, test and
    noise."""
    config = flat(run.config)
    evaluation = run.evaluation
    judged = run.layered or not run.spec.layered
    tested = {"kind of experiment": run.spec.title if judged else config.get("task")}
    names = ["data.source", "data.reduction", "class_names", run.spec.tested]
    if run.layered:
        names += ["experiment", "test_gammas", "noise"]
        tested["edges of ratio histograms"] = evaluation["ratio_histogram"]["edges"]
    tested |= {name: evaluation.get(name, config.get(name)) for name in names}
    # the same data may lie elsewhere or be spelled relative
    return tested | {"data.root": Path(str(config.get("data.root"))).name}
