"""`unroll-jax export`: a run's best parameters as safetensors, with the
configuration to load them and a model card."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Literal, get_args

import jax
import numpy as np
from safetensors.numpy import save

from .cli import ExportArguments, ExportFormat, parse
from .config.errors import UserError
from .config.options import to_json
from .config.run import FREE, RunConfig
from .core.evaluate import best_checkpoint, evaluated_step
from .core.folder import read_config
from .core.metrics import furthest_out, validation_of
from .core.objective import multipliers_in_order
from .core.plan import make_plan
from .core.step import evaluated_params
from .core.task import Log, Row, Task
from .data.pretrained.folders import COPIED, TEMPLATE
from .loading import (
    CARD,
    CONFIG,
    FORMAT,
    MARK,
    MODEL,
    by_config,
    claim,
    named_arrays,
    open_run,
    options_of,
)
from .registry import TASKS
from .system.files import (
    check_out,
    read_object,
    to_bytes,
    without_folders,
    write_all,
)
from .system.machine import environment
from .tasks.language.options import LanguageConfig

OWN = (
    "losses = model.predict(batch)  # arrays by name, as those trained on; (samples, L"
    " + 1) of every layer comes out"
)
OF_OWN = (
    "`config.json` holds the whole configuration, the figures of the data, and the"
    " validation of this step."
)
OF_TRANSFORMERS = "Low-rank changes are merged into the weights."
TRANSFORMERS = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "..."}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
output = model.generate(**prompt, max_new_tokens=256, do_sample=False)
answer = output[0, prompt["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))"""
FEASIBLE = {True: "feasible", False: "NOT feasible", None: "not known to be feasible"}


def command(arguments: list[str]) -> None:
    """`unroll-jax export RUN [--out FOLDER] [--format transformers]`."""
    parsed = parse(ExportArguments, arguments, "unroll-jax export")
    export(parsed.run, parsed.out, format=parsed.format, mesh=parsed.mesh)


def export(
    run: Path | str,
    out: Path | str | None = None,
    *,
    format: Literal["unroll_jax", "transformers"] = "unroll_jax",
    mesh: str | None = None,
    task: Task | None = None,
    log: Log = print,
) -> Path:
    """Writes model.safetensors, whose names are the keys of the parameters joined by
    dots, config.json and README.md.

    Returns the folder of these files.

    Args:
      run: the run's folder.
      out: where to. None means the folder export in the run's, or transformers after
        the format.
      format: "transformers" writes the folder of a decoder as that library reads it.
      mesh: devices to read the checkpoint onto. None is the default on these devices.
      task: the task itself, if it is your own. It takes the options of the run.
      log: where messages go.

    Example: see `fit`.
    """
    run = Path(run)
    converted = format == "transformers"
    usual = run / (format if converted else "export")
    out = usual if out is None else check_out(out)
    experiment, config = read_config(run, options_of(task))
    _check(run, experiment, config, format)
    claim(out)
    if task is None:
        experiment, task, plan = open_run(run, mesh=mesh, log=log)
    else:
        task = by_config(task, config, mesh=mesh)
        plan = make_plan(task)
    step, state, _ = best_checkpoint(task, plan, run, experiment=experiment, log=log)
    params = evaluated_params(plan, state)
    files: dict[str, bytes] = {}
    metadata = {"format": FORMAT}
    if converted:
        arrays, files = task.inner.to_transformers(params)
        metadata = {"format": "pt", MARK: FORMAT}  # transformers takes only "pt"
    else:
        arrays = named_arrays(jax.device_get(params))
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = save(ordered, metadata)
    multipliers = multipliers_in_order(plan, state.opt_state)
    description = _describe(task, run, experiment, step, multipliers)
    description["parameters"] = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in arrays.items()
    }
    description["sha256"] = hashlib.sha256(content).hexdigest()
    card = model_card(description, converted=converted).encode()
    for name in {TEMPLATE, *COPIED} - files.keys():  # of an earlier export
        (out / name).unlink(missing_ok=True)
    # config.json last: a kill before it leaves an unreadable folder
    files = files or {CONFIG: to_bytes(description)}
    write_all(out, {MODEL: content, CARD: card, **files})
    count = sum(array.size for array in arrays.values())
    log(
        f"{out / MODEL}: {count:,} parameters in {len(arrays)} arrays, {len(content):,}"
        f" bytes, of step {step}"
    )
    if description["validation"] is None:
        log(
            f"metrics.jsonl of {run} has no validation of step {step}: whether they are"
            " feasible is not known"
        )
    if description["feasible"] is False:
        log(
            "these parameters are NOT feasible on the validation split: no checkpoint"
            " of the run was"
        )
    return out


def _check(run: Path, experiment: str, config: RunConfig, format: str) -> None:
    if format not in (known := get_args(ExportFormat)):
        raise UserError(f"format must be one of {', '.join(known)}, got {format!r}")
    if format != "unroll_jax" and not isinstance(config, LanguageConfig):
        raise UserError(
            f"--format {format} is for language models, the runs of sft experiments;"
            f" {run} is of {experiment}: leave --format out"
        )


def _describe(
    task: Task, run: Path, experiment: str, step: int, multipliers: np.ndarray | None
) -> Row:
    """Returns config.json of an export, without the folders of this machine."""
    validation = validation_of(run, step)
    evaluation = None
    if evaluated_step(run) == step:
        evaluation = task.summary(read_object(run / "evaluation.json"))
    feasible, excess, numbers = None, None, None
    if validation is not None:
        judged = task.options.judge(validation)
        if judged.excess is not None:
            feasible, excess = judged.feasible, judged.excess
            numbers = np.asarray(multipliers).tolist()  # None of None
    return {
        "format": FORMAT,
        "experiment": experiment,
        "task": task.options.task,
        "step": step,
        "feasible": feasible,
        "excess": excess,
        "multipliers": numbers,
        "validation": validation,
        "evaluation": evaluation,
        "config": without_folders(to_json(dataclasses.replace(task.options, **FREE))),
        "found": task.fingerprint(),
        "facts": task.spec(),
        "environment": environment(),
    }


def model_card(description: Row, *, converted: bool = False) -> str:
    """Returns the card of an export from its config.json; ``converted`` to a folder
    of `transformers` or not."""
    count = sum(
        int(np.prod(array["shape"])) for array in description["parameters"].values()
    )
    versions = description["environment"].items()
    made_with = ", ".join(f"{name} {version}" for name, version in versions)
    return f"""# {description["experiment"]}, step {description["step"]}

- task: {description["task"]}, {count:,} parameters
- data: {_data(description)}
- constraints: {_constraints(description)}
- test split: {description["evaluation"] or "not evaluated"}
- made with: {made_with}

## Use

```python
{TRANSFORMERS if converted else _usage(description["task"])}
```

{OF_TRANSFORMERS if converted else OF_OWN}
"""


def _data(description: Row) -> str:
    """Returns the source, and the number of samples of each split, in the words of
    the task."""
    data = description["config"].get("data")
    source = data.get("source", "your own") if isinstance(data, dict) else "your own"
    facts = description["facts"] | description["found"]
    for unit in ("sequences", "examples"):
        if isinstance(counts := facts.get(unit), dict):
            shown = [f"{count:,} {split}" for split, count in counts.items()]
            return f"{source}: {', '.join(shown)} {unit}"
    return source


def _constraints(description: Row) -> str:
    """Returns the bounds, whether the validation split meets them, and the largest
    margin or excess."""
    config = description["config"]
    excess = description["excess"]
    bounds = config.get("constraints", {})
    method = config.get("method", "constrained")
    if method != "constrained" or "alpha" not in bounds:
        return "none; fixed weights" if method == "deep_supervision" else "none"
    words = (
        f"alpha {bounds['alpha']}, reference {bounds['reference']}:"
        f" {FEASIBLE[description['feasible']]}"
    )
    if excess is None:
        return words
    room = furthest_out(description["validation"], excess)
    return f"{words} on the validation split: {room}"


def _usage(task: str) -> str:
    row = TASKS.get(task)
    load = 'model = load("FOLDER")'
    if row is not None and row.functions is not None:
        predict = row.functions.predict
    else:
        load = (
            'model = load("FOLDER", task=task)  # the task that was trained, of your'
            " own code"
        )
        predict = "model.predict(...)  # see its predict" if row is None else OWN
    return f"from unroll_jax.train import load\n\n{load}\n{predict}"
