"""Evaluations of tasks as their report shows them: metric, unit, and the words of
the figures."""

from typing import NamedTuple


class ReportSpec(NamedTuple):
    """The evaluation of a task as its report shows it.

    Attributes:
      metric: key of evaluation.json under which the score is, by test gamma; of a task
        without layers, a share.
      title: the metric in words.
      work: what networks are trained for, for the first paragraph.
      label: of the metric's axis, with its unit.
      higher_is_better: whether the largest score is the best.
      percent: whether the score is a share, shown in percent.
      digits: behind the decimal point, in tables.
      gamma: the strength of noise on axes, with its unit; empty where a task has no
        noise.
      loss: of the axis of the layers' losses, with its unit.
      tested: key of the number of samples tested.
      baseline: key of the score of the noisy input itself by test gamma; None where
        there is none.
      reference: name, and prefix of the figures, of the reference that disturbances are
        tried on too; None for none.
      note: the definition of the metric.
      layered: whether layers have losses; else evaluations have a confusion matrix and
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
    title="mIoU",
    work="to name the class of every pixel of a scene",
    label="mIoU %",
    note=(
        "Overlap of predicted and true regions over their union, mean of the classes,"
        " in percent; higher is better."
    ),
)
_CERTIFIED = _IMAGES._replace(
    metric="certified",
    title="certified accuracy",
    work="to name the classes of images, with a guarantee",
    label="certified accuracy %",
    note=(
        "In percent of the test split, mean over the radii; higher is better. No"
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
