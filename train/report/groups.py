"""Runs put into settings (depth, training noise) and variants (runs that differ only by the seed)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.report.files import flat
from train.report.paths import without_folders
from train.report.read import METHODS, Run

__all__ = ["METHOD_NAMES", "Setting", "Variant", "group", "headline", "identity", "is_number", "unlike"]

METHOD_NAMES = {"erm": "plain", "constrained": "constrained"}
# Where a run lies and which seed it had do not make it another variant.
NOT_A_VARIANT = frozenset({"seed", "name", "run", "runs", "folder", "out", "output", "root", "prepared", "method"})
# What only the constrained method uses, and how a run computes: two methods are compared whatever these are.
CONSTRAINTS = ("dual", "constraints")
COMPUTING = ("accumulate", "remat", "mesh", "profile")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Variant:
    """Runs of one method that differ only by the seed; ``label`` names what sets them apart from the other variants."""

    method: str
    label: str
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """Method, and the config fields that set this variant apart."""
        return METHOD_NAMES[self.method] + (f" ({self.label})" if self.label else "")

    @property
    def gammas(self) -> list[str]:
        """Test gammas in rising order."""
        return self.runs[0].gammas

    def stack(self, key: str) -> Array:
        """A list of evaluation.json for every seed, shape (seeds, length)."""
        return np.stack([run.array(key) for run in self.runs])

    def mean(self, key: str) -> Array:
        """Mean of `stack` over the seeds."""
        return self.stack(key).mean(0)

    def scalar(self, key: str) -> float:
        """Mean of a number of evaluation.json over the seeds."""
        return float(np.mean([run.scalar(key) for run in self.runs]))

    def scores(self) -> Array:
        """The score at every test gamma, shape (seeds, gammas)."""
        return np.stack([run.scores() for run in self.runs])

    @property
    def bind(self) -> str:
        """What of the samples the constraints bind: their mean, or something else."""
        return str(self.runs[0].evaluation.get("bind", "mean"))

    @property
    def feasible_runs(self) -> int:
        """How many of the seeds ended feasible."""
        return sum(bool(run.evaluation["feasible"]) for run in self.runs)

    @property
    def feasible(self) -> bool:
        """Whether every seed ended feasible."""
        return self.feasible_runs == len(self.runs)

    def margins(self) -> Array:
        """Room below the bound as a fraction of it, (seeds, L + 1); negative where the bound is exceeded."""
        # A bound that is missing or not positive has no margin in percent.
        losses, bounds = self.stack("layer_losses"), self.stack("bounds")
        room = bounds - losses if self.bind == "mean" else -self.stack("violations")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(bounds > 0, room / bounds, np.nan)

    def worst(self) -> tuple[int, int, float]:
        """Position among the seeds, layer and margin where the least room is left; margin NaN if none is known."""
        margins = self.margins()
        if np.isnan(margins).all():
            return 0, 0, np.nan
        seed, layer = np.unravel_index(np.nanargmin(margins), margins.shape)
        return int(seed), int(layer), float(margins[seed, layer])


@dataclass(frozen=True)
class Setting:
    """All variants of one depth and training noise."""

    num_layers: int
    train_gamma: float
    variants: tuple[Variant, ...]

    @property
    def title(self) -> str:
        """Depth and training noise in words."""
        return f"{self.num_layers} layer{'s' * (self.num_layers > 1)}, training gamma {self.train_gamma:g}"

    @property
    def gammas(self) -> list[str]:
        """Test gammas in rising order."""
        return self.variants[0].gammas

    def of(self, method: str) -> list[Variant]:
        """Variants of one method, in the order given."""
        return [variant for variant in self.variants if variant.method == method]

    def pairs(self) -> list[tuple[Variant | None, Variant | None]]:
        """Every constrained variant with the plain one it is compared with, then the plain ones that none is.

        That one differs in the fewest config fields (see `unlike`), whatever the order in which runs were given.
        """
        plain = sorted(self.of("erm"), key=lambda variant: variant.label)
        compared: list[tuple[Variant | None, Variant | None]] = [
            (own, min(plain, key=lambda variant: len(unlike(own, variant)), default=None))
            for own in self.of("constrained")
        ]
        labels = {other.label for _, other in compared if other}
        return compared + [(None, variant) for variant in plain if variant.label not in labels]

    def duels(self) -> list[tuple[Variant, Variant]]:
        """Those of `pairs` that hold both methods, constrained first."""
        return [(own, other) for own, other in self.pairs() if own and other]

    def noisy_rmse(self) -> Array:
        """RMSE (0-255) of the noisy input itself, mean over the runs, at each test gamma."""
        return np.mean([run.by_gamma("noisy_rmse") for variant in self.variants for run in variant.runs], axis=0)

    @property
    def training_index(self) -> int:
        """Index of the test gamma that is the training gamma, or lies nearest to it."""
        return int(np.argmin([abs(float(gamma) - self.train_gamma) for gamma in self.gammas]))


def group(runs: Sequence[Run]) -> list[Setting]:
    """Settings in the order in which the runs were given; within one, plain before constrained."""
    cells: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.evaluation["num_layers"], run.scalar("train_gamma")), []).append(run)
    return [
        Setting(layers, gamma, tuple(v for method in METHODS for v in _variants(method, members)))
        for (layers, gamma), members in cells.items()
    ]


def headline(settings: Sequence[Setting]) -> Setting:
    """The setting that stands for the report: the first given that holds both methods, else the first given."""
    both = [setting for setting in settings if all(setting.of(method) for method in METHODS)]
    return (both or list(settings))[0]


def identity(run: Run) -> dict[str, Any]:
    """The run's config by dotted names, without what does not make a variant; a list of one number is that number."""
    kept = {key: value for key, value in flat(run.config).items() if key.split(".")[-1] not in NOT_A_VARIANT}
    return {key: value[0] if _is_one_number(value) else value for key, value in kept.items()}


def unlike(one: Variant, other: Variant) -> dict[str, tuple[str, str]]:
    """Config fields in which two variants differ though their methods do not ask for it, with the value of each."""
    configs = [identity(variant.runs[0]) for variant in (one, other)]
    fields = sorted(key for key in configs[0] | configs[1] if key.split(".")[0] not in (*CONSTRAINTS, *COMPUTING))
    values = {field: (_text(configs[0], field), _text(configs[1], field)) for field in fields}
    return {field: both for field, both in values.items() if both[0] != both[1]}


def is_number(value: Any) -> bool:
    """Whether a config value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _variants(method: str, runs: Sequence[Run]) -> list[Variant]:
    members = [run for run in runs if run.method == method]
    configs = [identity(run) for run in members]
    fields = sorted({key for config in configs for key in config if len({_text(c, key) for c in configs}) > 1})
    cells: dict[str, list[Run]] = {}
    for run, config in zip(members, configs, strict=True):
        label = ", ".join(f"{_short(field, fields)} {_text(config, field)}" for field in fields)
        cells.setdefault(label, []).append(run)
    return [Variant(method, label, tuple(cell)) for label, cell in cells.items()]


def _is_one_number(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and is_number(value[0])


def _short(field: str, fields: Sequence[str]) -> str:
    """The field's last name, unless another field ends in the same."""
    last = field.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in fields) == 1 else field


def _text(config: dict[str, Any], key: str) -> str:
    return str(without_folders(config.get(key, "not set")))
