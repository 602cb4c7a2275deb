"""The commands: run, plan, evaluate, report, prepare, list; and `fit`, which trains
from Python."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .cli import (
    HELP,
    EvaluateArguments,
    PrepareArguments,
    ReportArguments,
    configured,
    parse,
    unknown,
)
from .config.errors import UserError, kind_of
from .config.options import check_left_out, differences, to_json
from .config.run import RunConfig
from .config.sources import sources_of
from .registry import (
    EXPERIMENTS,
    MODULES,
    functions_of,
    open_task,
    prepare_data,
)
from .system.files import check_out, require_writable
from .system.machine import keep_programs, require_device

if TYPE_CHECKING:
    from .core.metrics import Callbacks
    from .core.task import Plan, Task

# What takes seconds to import (JAX, Orbax, TFDS) is imported by commands that need it,
# once their options are right.
SPLIT = "a source of images with a class each, of texts or instructions"
Log = Callable[[str], None]


def fit(
    what: "str | RunConfig | Task",
    *,
    out: Path | str | None = None,
    experiment: str | None = None,
    callbacks: "Sequence[Callbacks]" = (),
    log: Log = print,
) -> list[Path]:
    """Trains, evaluates and reports. An interrupted run resumes, a finished one is not
    trained again.

    Args:
      what: the name of an experiment, a configuration, or your task (`Task`, as
        `own_task` makes one).
      out: run folder. None makes one under runs/.
      experiment: the run's name in reports. None takes the name of the experiment or
        the task.
      callbacks: hear of every step, validation and end (`Callbacks`).
      log: where messages go.

    Returns:
      The run folders: one, or one of each method with ``method="both"`` or ``"all"``.

    Raises:
      UserError: for everything that you can mend, in one line.
      OSError, MemoryError: of the machine. A note names the checkpoint that is kept.

    Example:
      >>> import tempfile, jax.numpy as jnp, numpy as np
      >>> from unroll_jax.train import OwnConfig, export, load, own_task
      >>> def losses(scale, batch):  # of the input, and of one layer's output
      ...     x = batch["x"]
      ...     return jnp.concatenate([x**2, (scale * x) ** 2], axis=1)
      >>> arrays = {"x": np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None]}
      >>> config = OwnConfig(steps=2, batch_size=4, validate_every=2)
      >>> one, quiet = jnp.ones(()), lambda line: None
      >>> task = own_task(
      ...     lambda key: one, losses, train=arrays, validation=arrays, config=config
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     (run,) = fit(task, out=f"{folder}/run", log=quiet)
      ...     model = load(run, task=task)
      ...     written = export(run, task=task, log=quiet)
      ...     bool(model.params < 1.0), sorted(path.name for path in written.iterdir())
      (True, ['README.md', 'config.json', 'model.safetensors'])
    """
    name, trained, config = _target(what)
    given, config = config, config.resolved()
    config.check()  # before imports that take seconds
    from .core.evaluate import evaluate_run, is_evaluated
    from .core.folder import (
        check_experiment,
        check_first,
        check_folder,
        check_parent,
        default_folder,
        require_place,
    )
    from .core.loop import train_run
    from .core.metrics import check_callbacks
    from .report import write_report
    from .system.distributed import first_does, first_only, ignore_sigterm, is_first

    require_device()
    check_callbacks(callbacks)
    experiment = name if experiment is None else experiment
    check_experiment(experiment)
    log = first_only(log)
    for line in differences(to_json(given), to_json(config)):
        log(f"{line}, as other options rule it out")
    check_first(config)
    given_out = out or config.out
    folder = check_out(given_out) if given_out else default_folder(config, experiment)
    first_does(lambda: check_parent(config, folder))
    require_place(folder)
    variants = _variants(trained, config, log)
    places = [folder / variant.name for variant in variants]
    # all of them before the first step
    for place, variant in zip(places, variants, strict=True):
        first_does(functools.partial(check_folder, variant.task, place, experiment))
    for place, (_, task, plan, programs) in zip(places, variants, strict=True):
        train_run(
            task,
            plan,
            place,
            experiment=experiment,
            callbacks=callbacks,
            programs=programs,
            log=log,
        )
        if place == places[-1]:
            ignore_sigterm()
        if not is_evaluated(place):
            evaluate_run(task, plan, place, experiment=experiment, log=log)
    if is_first():
        write_report(places, folder / "report", log=log)
    return places


def run(arguments: list[str]) -> None:
    """`unroll-jax run EXPERIMENT [--option value ...]`."""
    if chosen := configured("run", arguments, _of_run(arguments)):
        experiment, config = chosen
        keep_programs()
        fit(config, experiment=experiment)


def plan(arguments: list[str]) -> None:
    """Prints the memory of a step on each device, without running one."""
    if chosen := configured("plan", arguments, _of_run(arguments)):
        experiment, config = chosen
        config = config.resolved()
        config.check()  # before what takes seconds to import
        from .core.folder import check_first
        from .core.plan import describe_memory, simulate

        keep_programs()
        simulate(config.mesh)
        check_first(config)
        for _, task, plan, _ in _variants(config, config, print):
            memory = describe_memory(task, plan)
            sys.stdout.write(f"{experiment}: {task.options.describe()}, {memory}\n")


def evaluate_again(arguments: list[str]) -> None:
    """`unroll-jax evaluate RUN`: the best checkpoint again."""
    parsed = parse(EvaluateArguments, arguments, "unroll-jax evaluate")
    from .core.evaluate import evaluate_run
    from .loading import open_run
    from .system.distributed import first_only, ignore_sigterm

    keep_programs()
    ignore_sigterm()
    log = first_only(print)
    experiment, task, plan = open_run(
        parsed.run, mesh=parsed.mesh, log=log, writes=True
    )
    other: dict[str, Any] = {}
    if parsed.on_source is None:
        usual = EvaluateArguments(parsed.run)
        check_left_out(parsed, ["on_root"], "--on-source", usual)
    else:
        from .tasks.video.task import on_other_video

        other["on"], other["place"] = on_other_video(
            task, parsed.on_source, parsed.on_root, log
        )
    evaluate_run(
        task,
        plan,
        parsed.run,
        experiment=experiment,
        options=parsed.disturbances,
        log=log,
        **other,
    )


def report(arguments: list[str]) -> None:
    """`unroll-jax report RUN ...`: compares runs of one kind of task."""
    parsed = parse(ReportArguments, arguments, "unroll-jax report")
    from .report import make_report, write

    out = check_out(parsed.out)
    made = make_report(parsed.runs)
    require_writable(out)
    write(made, out)


def prepare(arguments: list[str]) -> None:
    """`unroll-jax prepare SOURCE --from PATH`: data ahead of their first use."""
    parsed = parse(PrepareArguments, arguments, "unroll-jax prepare")
    config = next(kind for kind in MODULES if parsed.source in sources_of(kind))
    fields = {field.name for field in dataclasses.fields(config)}
    usual = PrepareArguments(parsed.source)
    if "validation_share" not in fields:
        check_left_out(parsed, ["validation_share"], SPLIT, usual)
    if parsed.source != "table":
        names = ["text_column", "label_column"]
        check_left_out(parsed, names, "the source table", usual)
    values = {name: value for name, value in vars(parsed).items() if name in fields}
    prepare_data(config(**values), print)


def show(arguments: list[str]) -> None:
    """`unroll-jax list [WORD]`: the experiments by task, with details for a name or
    task."""
    words = [word for word in arguments if word != "--all"]
    if set(HELP) & set(words):
        sys.stdout.write("usage: unroll-jax list [WORD] [--all]\n")
    elif len(words) > 1:
        raise UserError(
            f"list takes one word, of a name or a task, got {' '.join(words)}"
        )
    elif words:
        _show_details(words[0])
    else:
        _show_names(everything="--all" in arguments)


def _show_details(word: str) -> None:
    rows = [
        (name, row)
        for name, row in EXPERIMENTS.items()
        if word in name or word in row.config.task
    ]
    if not rows:
        raise UserError(
            f"list: {word!r} is in no name and no task; see `unroll-jax list`"
        )
    for name, row in sorted(rows, key=lambda item: not item[1].has_run):
        sys.stdout.write(
            f"{name:24} {row.summary}\n  task: {row.config.task}\n  source:"
            f" {row.paper}\n  expect: {row.expect}\n"
        )


def _show_names(*, everything: bool) -> None:
    groups: dict[str, str] = {}
    shown = 0
    for name, row in EXPERIMENTS.items():
        if not (everything or row.has_run):
            continue
        # of tasks.NAME.task
        group = functions_of(row.config).task.split(".")[1].replace("_", " ")
        groups.setdefault(group, f"{group}\n")
        groups[group] += f"  {name:28} {row.summary}\n"
        shown += 1
    sys.stdout.write("\n".join(groups.values()))
    if hidden := len(EXPERIMENTS) - shown:
        sys.stdout.write(
            f"\n{hidden} more are cells of papers' tables: unroll-jax list --all\n"
        )


class Variant(NamedTuple):
    """A run of a command: its subfolder, task and plan, and the compiled steps that it
    shares with runs that differ by the seed."""

    name: str
    task: "Task"
    plan: "Plan"
    programs: dict[Any, Any]


def _target(what: Any) -> tuple[str, Any, RunConfig]:
    if isinstance(what, str):
        if what not in EXPERIMENTS:
            raise unknown("experiment", [what], list(EXPERIMENTS))
        return what, EXPERIMENTS[what].config, EXPERIMENTS[what].config
    config = what if isinstance(what, RunConfig) else getattr(what, "options", None)
    if isinstance(config, RunConfig) and (config is what or hasattr(what, "losses")):
        return config.task, what, config
    raise UserError(
        "what must be the name of an experiment, a configuration (as"
        " EXPERIMENTS['demo'].config) or a task (as own_task(init, layer_losses,"
        f" train=..., validation=...)), got {kind_of(what)}; pass one of these"
    )


def _variants(what: "RunConfig | Task", config: RunConfig, log: Log) -> list[Variant]:
    """Returns the runs of a command. They share their data, which are opened once."""
    from .core.plan import in_steps, make_plan

    opened = isinstance(what, RunConfig)
    options = (dataclasses.replace(config, out=None) if opened else config).variants()
    task = open_task(options[0][1], log) if opened else what
    options = [(name, in_steps(variant, task)) for name, variant in options]
    first: Any = options[0][1]
    if getattr(config, "epochs", None) is not None and first.epochs is None:
        log(f"--epochs of --batch-size {first.batch_size} are {first.steps} steps")
    made: list[Variant] = []
    # By options with one seed: a task may have changed those that it was given.
    by_options: dict[Any, Variant] = {}
    for name, variant in options:
        key = dataclasses.replace(variant, seed=0)
        if key in by_options:
            same = by_options[key]
            seeded = dataclasses.replace(same.task.options, seed=variant.seed)
            made.append(
                same._replace(name=name, task=same.task._replace(options=seeded))
            )
            continue
        task = task if task.options == variant else task.make(variant)
        by_options[key] = Variant(name, task, make_plan(task), {})
        made.append(by_options[key])
    return made


def _of_run(arguments: list[str]) -> tuple[str, RunConfig] | None:
    """Returns experiment and options of a run folder that is named in place of an
    experiment, or None if it is none."""
    named = arguments[0] if arguments else ""
    folder = Path(named)
    if not named or named in EXPERIMENTS or not folder.is_dir():
        return None
    from .core.folder import read_config

    name, config = read_config(folder, free=True)
    return name, dataclasses.replace(config, out=str(folder))
