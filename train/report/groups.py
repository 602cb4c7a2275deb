"""Runs by setting (depth, training noise) and variant (runs that differ only by the
seed)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.run import FREE
from ..system.files import without_folders
from .records import METHODS, PER_LAYER, PER_STEP, SCALARS, Array, Run, flat
from .specs import OWN_REPORT, ReportSpec

# Fields that do not make another variant; fields of single methods do not make a
# comparison unequal.
NOT_A_VARIANT = frozenset({"seed", "method", "data.root", "data.prepared", *FREE})
OF_METHODS = ("dual", "constraints", "layer_weights", "layer_weighting")
FURTHER = ("error_rates", "area", "parameters")  # figures that some evaluations have


@dataclass(frozen=True)
class Variant:
    """Runs of one method that differ only by the seed; ``label`` names what sets
    them apart from the other variants."""

    method: str
    label: str
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """Method, and the config fields that set this variant apart."""
        return METHODS[self.method] + (f" ({self.label})" if self.label else "")

    def stack(self, key: str) -> Array:
        """Values of evaluation.json under a key for every seed, shape (seeds, ...)."""
        return np.stack([run.values(key) for run in self.runs])

    def mean(self, key: str) -> Array:
        """Mean of `stack` over the seeds."""
        return self.stack(key).mean(0)

    def scores(self) -> Array:
        """The score at every test gamma, shape (seeds, gammas)."""
        return self.stack(self.runs[0].spec.metric)

    def has(self, key: str) -> bool:
        """Returns whether the evaluations of all seeds hold a key."""
        return all(run.evaluation.get(key) is not None for run in self.runs)

    @property
    def feasible_runs(self) -> int:
        """The number of seeds that ended feasible."""
        return sum(bool(run.evaluation["feasible"]) for run in self.runs)

    def option(self, name: str) -> Any:
        """The option of a dotted name in the configuration of its runs; None where
        they lack it."""
        return flat(self.runs[0].config).get(name)

    def margins(self) -> Array:
        """Room below the bound as a fraction of it, (seeds, L + 1); negative where
        the bound is exceeded."""
        form = self.runs[0].evaluation.get("form", "difference")
        violations, losses, bounds = (
            self.stack(key) for key in ("violations", "layer_losses", "bounds")
        )
        if form != "difference":
            return -violations if form.startswith("ratio") else -np.expm1(violations)
        # A bound that is missing or not positive has no margin in percent.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(bounds > 0, (bounds - losses) / bounds, np.nan)

    def figures(self) -> dict[str, Any]:
        """The score with its range over the seeds, and means of all other figures."""
        scores, gammas, metric = (
            self.scores(),
            self.runs[0].gammas,
            self.runs[0].spec.metric,
        )
        ends = {"": scores.mean(0), "_min": scores.min(0), "_max": scores.max(0)}
        return {
            "seeds": [run.evaluation["seed"] for run in self.runs],
            "feasible": self.feasible_runs == len(self.runs),
            **{
                f"{metric}{end}": dict(zip(gammas, x, strict=True))
                for end, x in ends.items()
            },
            **{
                key: self.mean(key)
                for key in (*PER_LAYER, *PER_STEP, *SCALARS, *FURTHER)
                if self.has(key)
            },
        }


@dataclass(frozen=True, eq=False)
class Setting:
    """All variants of one depth and training noise.

    Attributes:
      title: depth and training noise in words.
      variants: plain before constrained.
      first: any run; all that the variants share is read from it.
      layers: numbers of the layers that are read, the input's 0 first; a model may have
        others between them.
      gammas: of the test, in rising order.
      training_index: of the gamma of training, or of the nearest to it.
    """

    title: str
    num_layers: int
    train_gamma: float
    variants: tuple[Variant, ...]
    first: Run
    spec: ReportSpec
    layers: list[int]
    gammas: Array
    training_index: int

    def of(self, method: str) -> list[Variant]:
        """Variants of one method, in the order given."""
        return [variant for variant in self.variants if variant.method == method]

    def pairs(self) -> list[tuple[Variant, Variant]]:
        """Every constrained variant with the plain one of the most similar config,
        and with each deep supervision."""
        plain, constrained = (
            sorted(self.of("plain"), key=lambda variant: variant.label),
            self.of("constrained"),
        )
        nearest = [
            (one, min(plain, key=lambda other: len(unlike(one, other))))
            for one in constrained
            if plain
        ]
        return nearest + [
            (one, other) for one in constrained for other in self.of("deep_supervision")
        ]

    def floors(self) -> dict[str, Array]:
        """Scores that need no network at each test gamma, by name, the input's
        first; means over the runs."""
        columns: dict[str, list[Array]] = {}
        for run in (run for one in self.variants for run in one.runs):
            floors = run.evaluation.get("floors", {})
            if self.spec.baseline:
                floors = {"noisy input": run.evaluation[self.spec.baseline], **floors}
            elif self.spec is OWN_REPORT:
                floors = {
                    "embedded input": dict.fromkeys(
                        run.gammas, run.evaluation["layer_losses"][0]
                    )
                }
            for name, scores in floors.items():
                columns.setdefault(name, []).append(run.at_gammas(scores))
        return {name: np.mean(column, axis=0) for name, column in columns.items()}


def group(runs: Sequence[Run]) -> list[Setting]:
    """Settings in the order in which the runs were given."""
    cells: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        cells.setdefault(
            (run.evaluation["num_layers"], float(run.values("train_gamma"))), []
        ).append(run)
    return [
        _setting(layers, gamma, members) for (layers, gamma), members in cells.items()
    ]


def by_config(runs: Sequence[Run]) -> dict[str, tuple[Run, ...]]:
    """Runs that differ only by the seed, under a label of the config fields that set
    them apart from the others."""
    configs = [_identity(run) for run in runs]
    fields = sorted(
        {
            key
            for config in configs
            for key in config
            if len({_text(c, key) for c in configs}) > 1
        }
    )
    last = [field.rpartition(".")[2] for field in fields]
    names = [
        short if last.count(short) == 1 else field
        for field, short in zip(fields, last, strict=True)
    ]
    cells: dict[str, tuple[Run, ...]] = {}
    for run, config in zip(runs, configs, strict=True):
        label = ", ".join(
            f"{name} {_text(config, field)}"
            for name, field in zip(names, fields, strict=True)
        )
        cells[label] = (*cells.get(label, ()), run)
    return cells


def unlike(one: Variant, other: Variant) -> list[str]:
    """Config fields in which two variants differ though their methods do not need
    it."""
    configs = [_identity(variant.runs[0]) for variant in (one, other)]
    fields = sorted(
        key for key in configs[0] | configs[1] if key.split(".")[0] not in OF_METHODS
    )
    return [
        field
        for field in fields
        if _text(configs[0], field) != _text(configs[1], field)
    ]


def _setting(depth: int, gamma: float, runs: Sequence[Run]) -> Setting:
    cells = {
        method: by_config([run for run in runs if run.evaluation["method"] == method])
        for method in METHODS
    }
    variants = tuple(
        Variant(method, label, cell)
        for method in METHODS
        for label, cell in cells[method].items()
    )
    first, spec = variants[0].runs[0], runs[0].spec
    layers, gammas = (
        list(first.evaluation.get("layers", range(depth + 1))),
        np.array([*map(float, first.gammas)]),
    )
    read = "" if layers[-1] == depth else f" of {layers[-1]}"
    title = (
        f"{depth}{read} layer{'s' * (depth > 1)}"
        + f", training gamma {gamma:g}" * bool(spec.gamma or gamma)
    )
    nearest = int(np.argmin(np.abs(gammas - gamma)))
    return Setting(title, depth, gamma, variants, first, spec, layers, gammas, nearest)


def _identity(run: Run) -> dict[str, Any]:
    """The run's config by dotted names, without fields that make no variant; a list
    of one value is that value."""
    kept = {
        key: value
        for key, value in flat(run.config).items()
        if key not in NOT_A_VARIANT
    }
    return {
        key: value[0] if isinstance(value, list) and len(value) == 1 else value
        for key, value in kept.items()
    }


def _text(config: dict[str, Any], key: str) -> str:
    return str(without_folders(config.get(key, "not set")))
