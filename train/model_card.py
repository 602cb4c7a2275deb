"""The README.md of an export: what was trained, on what, how well, against what, and how to load and use it."""

from collections.abc import Sequence

import numpy as np

from .registry import TASKS
from .system.terminal import Table, as_text
from .task import Row

OWN = "losses = model.predict(batch)  # arrays by name, as those trained on; (samples, L + 1) of every layer comes out"
FEASIBLE = {True: "feasible", False: "NOT feasible", None: "not known to be feasible"}

# Of constraints, what a card says where it is otherwise.
USUAL = {"bind": "mean", "form": "difference", "proxy": False}


def model_card(description: Row, tables: Sequence[Table], floor: str) -> str:
    """The card, from what config.json of the export says, the report's tables, and the figures without a model."""
    count = sum(int(np.prod(array["shape"])) for array in description["parameters"].values())
    return f"""# {description["experiment"]}, step {description["step"]}

- task: {description["task"]}, {count:,} parameters
- data: {_data(description)}
- constraints: {_constraints(description)}
- test split: {description["evaluation"] or "not evaluated"}
- made with: {", ".join(f"{name} {version}" for name, version in description["environment"].items())}
{_figures(tables, floor)}
## Use

```python
{_usage(description["task"])}
```

`config.json` holds the whole configuration, the figures of the data, and the validation of this step.
"""


def _data(description: Row) -> str:
    """Source, and how many samples each split has, in the words of the task."""
    data, facts = description["config"].get("data"), {**description["facts"], **description["found"]}
    source = data.get("source", "of its own") if isinstance(data, dict) else "of its own"
    for unit in ("sequences", "examples"):
        if isinstance(counts := facts.get(unit), dict):
            return f"{source}: {', '.join(f'{count:,} {split}' for split, count in counts.items())} {unit}"
    return source


def _constraints(description: Row) -> str:
    """The bounds, whether the validation split meets them, and by how much."""
    config, excess = description["config"], description["excess"]
    if config.get("method") == "deep_supervision":
        rising = ", rising" if config["rising_weights"] else ""
        return f"none; fixed weights {config['layer_weights']}{rising} on the losses of layers before the last"
    if config.get("method") != "constrained":
        return "none"
    bounds = config["constraints"]
    first = "" if bounds["first_alpha"] is None else f" ({bounds['first_alpha']} for layer 1)"
    words = f"alpha {bounds['alpha']}{first}, reference {bounds['reference']}"
    words += "".join(f", {name} {bounds[name]}" for name, usual in USUAL.items() if bounds[name] != usual)
    words += f": {FEASIBLE[description['feasible']]}"
    if excess is None:
        return words
    room = f"{excess:.1%} over its bound" if excess > 0 else f"{-excess:.1%} below its bound"
    return f"{words} on the validation split (the layer furthest out is {room})"


def _figures(tables: Sequence[Table], floor: str) -> str:
    if not tables:
        return ""
    beside = f"\nWithout a model: {floor}\n" if floor else ""
    text = "\n\n".join(map(as_text, tables))
    return f"\n## Figures of the test split\n{beside}\n```text\n{text}\n```\n"


def _usage(task: str) -> str:
    """Python that loads the folder and predicts; the application is `unroll_jax.train`, in a clone `train`."""
    load = """try:
    from unroll_jax.train import load
except ModuleNotFoundError:  # in a clone of the repository
    from unroll_jax.train import load
"""
    row = TASKS.get(task)
    if row is None or row.functions is None:
        with_task = 'model = load("FOLDER", task=task)  # the task that was trained, of your own code'
        predict = "model.predict(...)  # see its predict" if row is None else OWN
        return f"{load}\n{with_task}\n{predict}"
    return f'{load}\nmodel = load("FOLDER")\n{row.functions.predict}'
