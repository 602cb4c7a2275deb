"""Runs by setting (depth, training noise) and variant (runs that differ only by the seed)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.run import FREE
from ..registry import ReportSpec
from ..system.files import without_folders
from .records import METHODS, Array, LayeredRun, flat

METHOD_NAMES = {"erm": "plain", "deep_supervision": "deep supervision", "constrained": "constrained"}
# Fields that do not make another variant: the seed, and places.
NOT_A_VARIANT = frozenset({"seed", "name", "run", "runs", "folder", "output", "root", "prepared", "method", *FREE})
# Options that only one method uses: two methods are compared regardless of these.
OF_METHODS = ("dual", "constraints", "layer_weights", "rising_weights")


@dataclass(frozen=True)
class Variant:
    """Runs of one method that differ only by the seed; ``label`` names what sets them apart from the other variants."""

    method: str
    label: str
    runs: tuple[LayeredRun, ...]

    @property
    def title(self) -> str:
        """Method, and the config fields that set this variant apart."""
        return METHOD_NAMES[self.method] + (f" ({self.label})" if self.label else "")

    def stack(self, key: str) -> Array:
        """Values of evaluation.json under a key for every seed, shape (seeds, ...)."""
        return np.stack([run.values(key) for run in self.runs])

    def mean(self, key: str) -> Array:
        """Mean of `stack` over the seeds."""
        return self.stack(key).mean(0)

    def scores(self) -> Array:
        """The score at every test gamma, shape (seeds, gammas)."""
        return self.stack(self.runs[0].spec.metric)

    def areas(self) -> Array:
        """The area under the score of every seed; NaN where one gamma was tested."""
        tested = [len(run.evaluation["test_gammas"]) > 1 for run in self.runs]
        return np.where(tested, self.stack("area"), np.nan)

    def has(self, key: str) -> bool:
        """Returns whether the evaluations of all seeds hold a key."""
        return all(run.evaluation.get(key) is not None for run in self.runs)

    def curves(self, name: str) -> tuple[Array, Array]:
        """Steps that all seeds logged, and a column of metrics.jsonl of every seed at these."""
        tables = [run.curves for run in self.runs]
        steps = functools.reduce(np.intersect1d, [table["step"] for table in tables])
        return steps, np.stack([table[name][np.isin(table["step"], steps)] for table in tables])

    @property
    def feasible_runs(self) -> int:
        """The number of seeds that ended feasible."""
        return sum(bool(run.evaluation["feasible"]) for run in self.runs)

    @property
    def feasible(self) -> bool:
        """True where every seed ended feasible."""
        return self.feasible_runs == len(self.runs)

    def margins(self) -> Array:
        """Room below the bound as a fraction of it, (seeds, L + 1); negative where the bound is exceeded."""
        evaluation = self.runs[0].evaluation
        bind, form = evaluation.get("bind", "mean"), evaluation.get("form", "difference")
        violations, losses, bounds = (self.stack(key) for key in ("violations", "layer_losses", "bounds"))
        if form != "difference":
            return -violations if form == "ratio" else -np.expm1(violations)
        # A bound that is missing or not positive has no margin in percent.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(bounds > 0, (bounds - losses if bind == "mean" else -violations) / bounds, np.nan)

    def worst(self) -> tuple[int, int, float]:
        """Position among the seeds, layer and margin where the least room is left; margin NaN if none is known."""
        margins = self.margins()
        if np.isnan(margins).all():
            return 0, 0, np.nan
        seed, layer = np.unravel_index(np.nanargmin(margins), margins.shape)
        numbers = self.runs[0].evaluation.get("layers", range(margins.shape[1]))
        return int(seed), int(numbers[layer]), float(margins[seed, layer])


@dataclass(frozen=True)
class Setting:
    """All variants of one depth and training noise."""

    num_layers: int
    train_gamma: float
    variants: tuple[Variant, ...]

    @property
    def title(self) -> str:
        """Depth and training noise in words."""
        read = "" if self.layers[-1] == self.num_layers else f" of {self.layers[-1]}"
        layers = f"{self.num_layers}{read} layer{'s' * (self.num_layers > 1)}"
        return f"{layers}, training gamma {self.train_gamma:g}" if self.spec.gamma or self.train_gamma else layers

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that are read, the input's 0 first; a model may have others between them."""
        return list(self.first.evaluation.get("layers", range(self.num_layers + 1)))

    @property
    def first(self) -> LayeredRun:
        """Any run: what all of them share is read from it."""
        return self.variants[0].runs[0]

    @property
    def spec(self) -> ReportSpec:
        """The spec of the task's report."""
        return self.first.spec

    @property
    def gammas(self) -> Array:
        """Test gammas in rising order."""
        return np.array([float(gamma) for gamma in self.first.gammas])

    @property
    def training_index(self) -> int:
        """Index of the test gamma that is the training gamma, or lies nearest to it."""
        return int(np.argmin(np.abs(self.gammas - self.train_gamma)))

    def of(self, method: str) -> list[Variant]:
        """Variants of one method, in the order given."""
        return [variant for variant in self.variants if variant.method == method]

    def pairs(self) -> list[tuple[Variant, Variant]]:
        """Every constrained variant with the plain one of the most similar config, and with each deep supervision."""
        plain = sorted(self.of("erm"), key=lambda variant: variant.label)
        nearest = [
            (one, min(plain, key=lambda other: len(unlike(one, other)))) for one in self.of("constrained") if plain
        ]
        return nearest + [(one, other) for one in self.of("constrained") for other in self.of("deep_supervision")]

    def floors(self) -> dict[str, Array]:
        """Scores that need no network at each test gamma, by name, the input's own first; means over the runs."""
        runs = [run for one in self.variants for run in one.runs]
        key, with_floors = self.spec.baseline, [run.floors for run in runs if run.floors]
        floors = {"noisy input": np.mean([run.values(key) for run in runs], axis=0)} if key else {}
        for name in (with_floors or [{}])[0]:
            floors[name] = np.mean([each[name] for each in with_floors if name in each], axis=0)
        return floors

    def floor_shares(self) -> dict[str, float]:
        """The share of the test split that each floor is of; all of it is 1."""
        shares = [run.evaluation["floor_shares"] for one in self.variants for run in one.runs if run.floors]
        return {name: float(share) for name, share in (shares or [{}])[0].items()}


def group(runs: Sequence[LayeredRun]) -> list[Setting]:
    """Settings in the order in which the runs were given; within one, plain before constrained."""
    cells: dict[tuple[int, float], list[LayeredRun]] = {}
    for run in runs:
        cells.setdefault((run.evaluation["num_layers"], float(run.values("train_gamma"))), []).append(run)
    return [
        Setting(layers, gamma, tuple(v for method in METHODS for v in _variants(method, members)))
        for (layers, gamma), members in cells.items()
    ]


def unlike(one: Variant, other: Variant) -> dict[str, tuple[str, str]]:
    """Config fields in which two variants differ though their methods do not need it, with the value of each."""
    configs = [_identity(variant.runs[0]) for variant in (one, other)]
    fields = sorted(key for key in configs[0] | configs[1] if key.split(".")[0] not in OF_METHODS)
    values = {field: (_text(configs[0], field), _text(configs[1], field)) for field in fields}
    return {field: both for field, both in values.items() if both[0] != both[1]}


def _variants(method: str, runs: Sequence[LayeredRun]) -> list[Variant]:
    members = [run for run in runs if run.method == method]
    configs = [_identity(run) for run in members]
    fields = sorted({key for config in configs for key in config if len({_text(c, key) for c in configs}) > 1})
    cells: dict[str, list[LayeredRun]] = {}
    for run, config in zip(members, configs, strict=True):
        label = ", ".join(f"{_short(field, fields)} {_text(config, field)}" for field in fields)
        cells.setdefault(label, []).append(run)
    return [Variant(method, label, tuple(cell)) for label, cell in cells.items()]


def _identity(run: LayeredRun) -> dict[str, Any]:
    """The run's config by dotted names, without what does not make a variant; a list of one value is that value."""
    kept = {key: value for key, value in flat(run.config).items() if key.split(".")[-1] not in NOT_A_VARIANT}
    return {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in kept.items()}


def _short(field: str, fields: Sequence[str]) -> str:
    """The field's last name, unless another field ends in the same."""
    last = field.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in fields) == 1 else field


def _text(config: dict[str, Any], key: str) -> str:
    return str(without_folders(config.get(key, "not set")))
