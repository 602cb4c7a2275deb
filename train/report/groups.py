"""Runs by setting (depth, training noise) and variant (runs that differ only by the
seed)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.options import flat
from ..config.run import FREE
from ..system.files import without_folders
from .records import METHODS, Array, Run

# Fields that do not make another variant. Fields of single methods do not make a
# comparison unequal.
NOT_A_VARIANT = frozenset({"seed", "method", "data.root", "data.prepared", *FREE})
OF_METHODS = ("dual", "constraints", "layer_weights", "layer_weighting")


@dataclass(frozen=True, eq=False)
class Variant:
    """Runs of one method that differ only by the seed. ``label`` names what sets
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
    def seeds(self) -> list[int]:
        """The seeds in the order of the runs."""
        return [run.evaluation["seed"] for run in self.runs]

    def feasible(self, key: str = "feasible") -> str:
        """How many of the seeds ended feasible, in words."""
        return f"{self.stack(key).sum():.0f} of {len(self.runs)}"

    def option(self, name: str) -> Any:
        """The option of a dotted name in the configuration of its runs, or None where
        they lack it."""
        return flat(self.runs[0].config).get(name)


class Setting:
    """All variants of one depth and training noise.

    Attributes:
      variants: plain before constrained.
      first: any run. All that the variants share is read from it.
      spec: how their task is reported.
      num_layers, train_gamma: what the setting is of.
      layers: numbers of the layers that are read, the input's 0 first. A model may have
        others between them.
      gammas: of the test, in rising order.
      training_index: of the gamma of training, or of the nearest to it.
      title: depth and training noise in words.
    """

    def __init__(self, variants: Sequence[Variant]):
        self.variants = variants
        self.first = first = variants[0].runs[0]
        self.spec = first.spec
        self.layers = first.layers
        self.num_layers = depth = first.evaluation["num_layers"]
        self.train_gamma = gamma = float(first.values("train_gamma"))
        self.gammas = np.array([*map(float, first.gammas)])
        self.training_index = int(np.argmin(np.abs(self.gammas - gamma)))
        read = "" if self.layers[-1] == depth else f" of {self.layers[-1]}"
        self.title = f"{depth}{read} layer{'s' if depth > 1 else ''}"
        if self.spec.gamma or gamma:
            self.title += f", training gamma {gamma:g}"

    def of(self, method: str) -> list[Variant]:
        """Variants of one method, in the order given."""
        return [variant for variant in self.variants if variant.method == method]

    def pairs(self) -> list[tuple[Variant, Variant]]:
        """Every constrained variant with the plain one of the most similar config,
        and with each deep supervision."""
        plain = sorted(self.of("plain"), key=lambda variant: variant.label)
        pairs = []
        for one in self.of("constrained") if plain else []:
            differing = [len(unlike(one, other)) for other in plain]
            pairs.append((one, plain[int(np.argmin(differing))]))
        deep = self.of("deep_supervision")
        return pairs + [
            (one, other) for one in self.of("constrained") for other in deep
        ]

    def floors(self) -> dict[str, Array]:
        """Scores that need no network at each test gamma, by name, the input's
        first, means over the runs."""
        columns = [run.floors() for one in self.variants for run in one.runs]
        shared = [name for name in columns[0] if all(name in one for one in columns)]
        return {name: np.mean([one[name] for one in columns], 0) for name in shared}


def group(runs: Sequence[Run]) -> list[Setting]:
    """Settings in the order in which the runs were given."""
    cells: dict[Any, list[Run]] = {}
    for run in runs:
        place = run.evaluation["num_layers"], float(run.values("train_gamma"))
        cells.setdefault(place, []).append(run)
    settings = []
    for members in cells.values():
        variants = []
        for method in METHODS:
            of_method = [run for run in members if run.evaluation["method"] == method]
            for label, cell in by_config(of_method).items():
                variants.append(Variant(method, label, tuple(cell)))
        settings.append(Setting(variants))
    return settings


def by_config(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only by the seed, under a label of the config fields that set
    them apart from the others."""
    configs = [_identity(run) for run in runs]
    every = sorted({field for config in configs for field in config})
    fields = [f for f in every if len({config.get(f) for config in configs}) > 1]
    last = [field.rpartition(".")[2] for field in fields]
    cells: dict[str, list[Run]] = {}
    for run, config in zip(runs, configs, strict=True):
        words = []
        for field, short in zip(fields, last, strict=True):
            name = short if last.count(short) == 1 else field
            words.append(f"{name} {config.get(field, 'not set')}")
        cells.setdefault(", ".join(words), []).append(run)
    return cells


def unlike(one: Variant, other: Variant) -> list[str]:
    """Config fields in which two variants differ though their methods do not need
    it."""
    ours, theirs = (_identity(variant.runs[0]) for variant in (one, other))
    return sorted(
        field
        for field in ours | theirs
        if field.split(".")[0] not in OF_METHODS
        and ours.get(field) != theirs.get(field)
    )


def _identity(run: Run) -> dict[str, str]:
    """The run's config by dotted names, as texts without folders, without fields that
    make no variant. A list of one value is that value."""
    texts = {}
    for key, value in flat(run.config).items():
        if key not in NOT_A_VARIANT:
            is_one = isinstance(value, list) and len(value) == 1
            texts[key] = str(without_folders(value[0] if is_one else value))
    return texts
