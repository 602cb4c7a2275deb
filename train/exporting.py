"""`unroll-jax export`: a run's best parameters as safetensors, with the configuration to load them and a model card."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save

from .cli import parse
from .config.commands import ExportArguments
from .config.errors import UserError
from .config.fields import to_json
from .config.run import FREE
from .evaluate import best_checkpoint
from .loading import by_config, open_run, options_of
from .metrics import read_metrics
from .registry import TASKS
from .runs import read_config
from .system.files import PARTIAL, check_out, read_object, require_writable, without_folders, write_all, writing
from .system.machine import environment
from .task import Row, Task
from .weights import CARD, CONFIG, FORMAT, MODEL, named_arrays

Log = Callable[[str], None]
OWN = "losses = model.predict(batch)  # arrays by name, as those trained on; (samples, L + 1) of every layer comes out"
FEASIBLE = {True: "feasible", False: "NOT feasible", None: "not known to be feasible"}


def command(arguments: list[str]) -> None:
    """`unroll-jax export RUN [--out FOLDER]`."""
    parsed = parse(ExportArguments, arguments, "unroll-jax export")
    export(parsed.run, parsed.out, mesh=parsed.mesh)


def export(
    run: Path | str,
    out: Path | str | None = None,
    *,
    mesh: str | None = None,
    task: Task | None = None,
    log: Log = print,
) -> Path:
    """Writes model.safetensors, whose names are the keys of the parameters joined by dots, config.json and README.md.

    Args:
      run: the run's folder.
      out: where to; None means the folder export in the run's.
      mesh: devices to read the checkpoint onto; None is the default on these devices.
      task: the task itself, if it is your own; its options are those of the run.
      log: where messages go.

    Returns:
      The folder written to.

    Raises:
      UserError: if the run has no checkpoint that can be read, or the folder holds other files.

    Example: see `fit`.
    """
    run = Path(run)
    out = run / "export" if out is None else check_out(out)
    experiment, config = read_config(run, options_of(task))
    _claim(out)
    if task is None:
        experiment, task = open_run(run, mesh=mesh, log=log)
    else:
        task = by_config(task, config, mesh=mesh)
    step, state, _ = best_checkpoint(task, run, experiment=experiment, log=log)
    arrays = named_arrays(jax.device_get(state.evaluated))
    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"format": FORMAT})
    described = {
        **_describe(task, run, experiment, step, task.training.objective.multipliers(state.moving)),
        "parameters": {name: {"shape": list(array.shape), "dtype": str(array.dtype)} for name, array in arrays.items()},
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    _write(out, content, described, model_card(described))
    count = sum(array.size for array in arrays.values())
    log(f"{out / MODEL}: {count:,} parameters in {len(arrays)} arrays, {len(content):,} bytes, of step {step}")
    if described["validation"] is None:
        log(f"metrics.jsonl of {run} has no validation of step {step}: whether they are feasible is not known")
    if described["feasible"] is False:
        log("these parameters are NOT feasible on the validation split: no checkpoint of the run was")
    return out


def _describe(task: Task, run: Path, experiment: str, step: int, multipliers: np.ndarray | None) -> Row:
    """Returns config.json of an export, without the folders of this machine."""
    rows = (row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "validation")
    validation = next((row for row in rows if row["step"] == step), None)
    judgement = task.config.judge(validation) if validation else None
    constrained = judgement is not None and judgement.excess is not None
    evaluation = run / "evaluation.json"
    return {
        "format": FORMAT,
        "experiment": experiment,
        "task": task.config.task,
        "step": step,
        "feasible": judgement.feasible if judgement is not None and constrained else None,
        "excess": judgement.excess if judgement is not None else None,
        "multipliers": multipliers.tolist() if constrained and multipliers is not None else None,
        "validation": validation,
        "evaluation": task.summary_line(read_object(evaluation)) if evaluation.exists() else None,
        "config": without_folders(to_json(dataclasses.replace(task.config, **FREE))),
        "found": task.data_fingerprint(),
        "facts": task.model_spec(),
        "environment": environment(),
    }


def _claim(out: Path) -> None:
    """Checks that the folder is new or of an earlier export, before anything is computed."""
    require_writable(out, f"--out {out}", "pass another folder")
    if not out.exists():
        return
    files = (MODEL, CONFIG, CARD)
    ours = {*files, *(str(Path(name).with_suffix(PARTIAL)) for name in files)}
    others = any(entry.name not in ours for entry in out.iterdir())
    with contextlib.suppress(UserError):  # of a damaged config.json
        written = read_object(out / CONFIG) if (out / CONFIG).exists() else {"format": FORMAT}
        if not others and str(written.get("format")).startswith("unroll_jax"):
            return
    raise UserError(f"--out {out} holds files of something else than an export; pass an empty or a new folder")


def _write(out: Path, content: bytes, described: Row, card: str) -> None:
    """Writes each file in one move, config.json last: a kill between two leaves an unreadable folder."""
    text = json.dumps(described, indent=2, allow_nan=False) + "\n"
    with writing(f"--out {out}", "pass another folder"):
        write_all(out, {MODEL: content, CARD: card.encode(), CONFIG: text.encode()})


def model_card(description: Row) -> str:
    """Returns the card of an export from its config.json."""
    count = sum(int(np.prod(array["shape"])) for array in description["parameters"].values())
    return f"""# {description["experiment"]}, step {description["step"]}

- task: {description["task"]}, {count:,} parameters
- data: {_data(description)}
- constraints: {_constraints(description)}
- test split: {description["evaluation"] or "not evaluated"}
- made with: {", ".join(f"{name} {version}" for name, version in description["environment"].items())}

## Use

```python
{_usage(description["task"])}
```

`config.json` holds the whole configuration, the figures of the data, and the validation of this step.
"""


def _data(description: Row) -> str:
    """Returns the source, and the number of samples of each split, in the words of the task."""
    data, facts = description["config"].get("data"), {**description["facts"], **description["found"]}
    source = data.get("source", "your own") if isinstance(data, dict) else "your own"
    for unit in ("sequences", "examples"):
        if isinstance(counts := facts.get(unit), dict):
            return f"{source}: {', '.join(f'{count:,} {split}' for split, count in counts.items())} {unit}"
    return source


def _constraints(description: Row) -> str:
    """Returns the bounds, whether the validation split meets them, and the largest margin or excess."""
    config, excess = description["config"], description["excess"]
    bounds = config.get("constraints", {})
    names, method = list(bounds.get("also", ())), config.get("method", "constrained")
    if method != "constrained" or not (names or "alpha" in bounds):
        return "none; fixed weights" if method == "deep_supervision" else "none"
    if bounds.get("layers", False):
        names = [f"alpha {bounds['alpha']}", f"reference {bounds['reference']}", *names]
    words = f"{', '.join(names)}: {FEASIBLE[description['feasible']]}"
    if excess is None:
        return words
    room = f"{abs(excess):.1%} {'over' if excess > 0 else 'below'} its bound"
    furthest = "one" if bounds.get("also") else "layer"
    return f"{words} on the validation split (the {furthest} furthest out is {room})"


def _usage(task: str) -> str:
    """Returns Python that loads the folder and predicts."""
    load, row = "from unroll_jax.train import load\n", TASKS.get(task)
    if row is None or row.functions is None:
        with_task = 'model = load("FOLDER", task=task)  # the task that was trained, of your own code'
        predict = "model.predict(...)  # see its predict" if row is None else OWN
        return f"{load}\n{with_task}\n{predict}"
    return f'{load}\nmodel = load("FOLDER")\n{row.functions.predict}'
