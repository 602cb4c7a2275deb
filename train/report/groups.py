"""Runs put into settings (depth, training noise) and variants (runs that differ only by the seed)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.run import FREE
from ..system.files import without_folders
from .read import LOSS, METHODS, Run, Score
from .record import Array, flat

METHOD_NAMES = {"erm": "plain", "deep_supervision": "deep supervision", "constrained": "constrained"}
# Where a run lies and which seed it had do not make it another variant.
NOT_A_VARIANT = frozenset({"seed", "name", "run", "runs", "folder", "output", "root", "prepared", "method", *FREE})
# What only one method uses: two methods are compared whatever these are.
OF_METHODS = ("dual", "constraints", "layer_weights", "rising_weights")


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

    def stack(self, key: str) -> Array:
        """Returns the values of evaluation.json under a key for every seed, shape (seeds, ...)."""
        return np.stack([run.values(key) for run in self.runs])

    def mean(self, key: str) -> Array:
        """Mean of `stack` over the seeds."""
        return self.stack(key).mean(0)

    def scores(self) -> Array:
        """The score at every test gamma, shape (seeds, gammas)."""
        return self.stack(self.runs[0].score.name)

    def areas(self) -> Array:
        """The area under the accuracy of every seed; NaN where one gamma was tested, over which there is none."""
        tested = [len(run.evaluation["test_gammas"]) > 1 for run in self.runs]
        return np.where(tested, self.stack("area"), np.nan)

    def mean_exit(self, *names: str) -> dict[str, float]:
        """Means over the seeds of numbers of early exit."""
        exits = [run.evaluation["early_exit"] for run in self.runs]
        return {name: float(np.mean([{**one["milliseconds"], **one}[name] for one in exits])) for name in names}

    @property
    def bind(self) -> str:
        """The statistic of the samples that constraints bound: "mean", or another of --constraints.bind."""
        return str(self.runs[0].evaluation.get("bind", "mean"))

    @property
    def form(self) -> str:
        """The form in which constraints compare a loss with its bound."""
        return str(self.runs[0].evaluation.get("form", "difference"))

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
        # A bound that is missing or not positive has no margin in percent.
        losses, bounds = self.stack("layer_losses"), self.stack("bounds")
        if self.form != "difference":
            return -self.stack("violations") if self.form == "ratio" else -np.expm1(self.stack("violations"))
        room = bounds - losses if self.bind == "mean" else -self.stack("violations")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(bounds > 0, room / bounds, np.nan)

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
        """Depth and training noise in words; a task that is scored by its loss has no noise."""
        read = "" if self.layers[-1] == self.num_layers else f" of {self.layers[-1]}"
        layers = f"{self.num_layers}{read} layer{'s' * (self.num_layers > 1)}"
        noisy = self.train_gamma > 0.0 or self.score is not LOSS
        return f"{layers}, training gamma {self.train_gamma:g}" if noisy else layers

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that are read, the input's 0 first; a model may have others between them."""
        return list(self.first.evaluation.get("layers", range(self.num_layers + 1)))

    @property
    def first(self) -> Run:
        """Any run: what all of them share is read from it."""
        return self.variants[0].runs[0]

    @property
    def score(self) -> Score:
        """The score of the runs."""
        return self.first.score

    @property
    def gammas(self) -> Array:
        """Test gammas in rising order."""
        return np.array([float(gamma) for gamma in self.first.gammas])

    def of(self, method: str) -> list[Variant]:
        """Variants of one method, in the order given."""
        return [variant for variant in self.variants if variant.method == method]

    def pairs(self) -> list[tuple[Variant | None, Variant | None]]:
        """Every constrained variant with the plain one it is compared with, then the plain ones that none is.

        That one differs in the fewest config fields (see `unlike`), whatever the order in which runs were given.
        """
        plain = sorted(self.of("erm"), key=lambda variant: variant.label)
        compared: list[tuple[Variant | None, Variant | None]] = [
            (constrained, min(plain, key=lambda variant: len(unlike(constrained, variant)), default=None))
            for constrained in self.of("constrained")
        ]
        labels = {other.label for _, other in compared if other}
        return compared + [(None, variant) for variant in plain if variant.label not in labels]

    def duels(self, against: str = "erm") -> list[tuple[Variant, Variant]]:
        """Returns the `pairs` with both methods, constrained first; of deep supervision, with all of its weights."""
        if against == "erm":
            return [(constrained, other) for constrained, other in self.pairs() if constrained and other]
        return [(constrained, other) for constrained in self.of("constrained") for other in self.of(against)]

    def of_input(self) -> Array:
        """The score of the noisy input itself, mean over the runs, at each test gamma."""
        return np.mean([run.values(str(run.score.baseline)) for one in self.variants for run in one.runs], axis=0)

    def floors(self) -> dict[str, Array]:
        """Returns scores that need no network at each test gamma, by name; the mean over the runs that have them."""
        run_floors = [run.floors for one in self.variants for run in one.runs if run.floors]
        return {
            name: np.mean([floors[name] for floors in run_floors if name in floors], axis=0)
            for name in (run_floors or [{}])[0]
        }

    def floor_shares(self) -> dict[str, float]:
        """Returns the share of the test split that each of `floors` is of."""
        runs = [run for one in self.variants for run in one.runs if run.floors]
        return {name: float(runs[0].evaluation["floor_shares"][name]) for name in self.floors()}

    @property
    def training_index(self) -> int:
        """Index of the test gamma that is the training gamma, or lies nearest to it."""
        return int(np.argmin(np.abs(self.gammas - self.train_gamma)))


@dataclass(frozen=True)
class Series:
    """Variants that differ in one field only, by rising ``values`` of it; ``label`` tells what they share."""

    label: str
    values: Array
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Ablation:
    """One numeric config field, by dotted name, that was varied within a setting."""

    setting: Setting
    field: str
    series: tuple[Series, ...]


def group(runs: Sequence[Run]) -> list[Setting]:
    """Settings in the order in which the runs were given; within one, plain before constrained."""
    cells: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.evaluation["num_layers"], float(run.values("train_gamma"))), []).append(run)
    return [
        Setting(layers, gamma, tuple(v for method in METHODS for v in _variants(method, members)))
        for (layers, gamma), members in cells.items()
    ]


def identity(run: Run) -> dict[str, Any]:
    """The run's config by dotted names, without what does not make a variant; a list of one number is that number."""
    kept = {key: value for key, value in flat(run.config).items() if key.split(".")[-1] not in NOT_A_VARIANT}
    alone = {key: value[0] for key, value in kept.items() if isinstance(value, list) and len(value) == 1}
    return kept | {key: value for key, value in alone.items() if _is_number(value)}


def unlike(one: Variant, other: Variant) -> dict[str, tuple[str, str]]:
    """Config fields in which two variants differ though their methods do not ask for it, with the value of each."""
    configs = [identity(variant.runs[0]) for variant in (one, other)]
    fields = sorted(key for key in configs[0] | configs[1] if key.split(".")[0] not in OF_METHODS)
    values = {field: (_text(configs[0], field), _text(configs[1], field)) for field in fields}
    return {field: both for field, both in values.items() if both[0] != both[1]}


def find_ablations(settings: Sequence[Setting]) -> list[Ablation]:
    """Every numeric field that alone sets two or more constrained variants of a setting apart."""
    ablations = []
    for setting in settings:
        variants = setting.of("constrained")
        configs = [identity(variant.runs[0]) for variant in variants]
        for field in sorted({key for config in configs for key in config}):
            if series := _series(field, variants, configs):
                ablations.append(Ablation(setting, field, series))
    return ablations


def _series(field: str, variants: Sequence[Variant], configs: Sequence[dict]) -> tuple[Series, ...]:
    """Variants that are equal but for ``field``, where they hold two different numbers or more."""
    cells: dict[tuple, list[tuple[float, int]]] = {}
    for index, config in enumerate(configs):
        if _is_number(config.get(field)):
            shared = tuple(sorted((key, str(value)) for key, value in config.items() if key != field))
            cells.setdefault(shared, []).append((float(config[field]), index))
    kept = {shared: sorted(cell) for shared, cell in cells.items() if len({value for value, _ in cell}) > 1}
    varying = {entry for shared in kept for entry in shared if not all(entry in other for other in kept)}
    return tuple(
        Series(
            label=", ".join(f"{key.split('.')[-1]} {value}" for key, value in shared if (key, value) in varying),
            values=np.array([value for value, _ in cell]),
            variants=tuple(variants[index] for _, index in cell),
        )
        for shared, cell in kept.items()
    )


def _variants(method: str, runs: Sequence[Run]) -> list[Variant]:
    members = [run for run in runs if run.method == method]
    configs = [identity(run) for run in members]
    fields = sorted({key for config in configs for key in config if len({_text(c, key) for c in configs}) > 1})
    cells: dict[str, list[Run]] = {}
    for run, config in zip(members, configs, strict=True):
        label = ", ".join(f"{_short(field, fields)} {_text(config, field)}" for field in fields)
        cells.setdefault(label, []).append(run)
    return [Variant(method, label, tuple(cell)) for label, cell in cells.items()]


def _short(field: str, fields: Sequence[str]) -> str:
    """The field's last name, unless another field ends in the same."""
    last = field.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in fields) == 1 else field


def _text(config: dict[str, Any], key: str) -> str:
    return str(without_folders(config.get(key, "not set")))


def _is_number(value: Any) -> bool:
    """Returns whether a config value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
