"""The command line: run, plan, search, launch, evaluate, predict, export, report, figures, prepare, list."""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, get_args

from train.arguments import (
    EvaluateArguments,
    ExportArguments,
    ImageSource,
    LaunchArguments,
    PredictArguments,
    PrepareArguments,
    ReportArguments,
    SceneSource,
    SearchArguments,
    TextSource,
    elsewhere,
    over_hint,
)
from train.errors import Interrupted, UserError
from train.flags import SIMULATED, order_collectives, quiet
from train.interrupts import CTRL_C, stopping_at_once
from train.parsing import given, parse, unknown
from train.typed import as_typed

__all__ = ["main"]

HELP = ("-h", "--help")
TOGETHER = ("run", "plan", "evaluate")  # the commands that many processes run as one
MEMBERSHIP = ("--coordinator", "--processes", "--process", "--cluster")
MOST_PROCESSES = 256  # on one machine: each takes some 300 MB
USAGE = """\
usage: python -m train [--coordinator HOST:PORT --processes N --process I | --cluster NAME] COMMAND ...

  run EXPERIMENT [--option value ...]   train and evaluate; goes on where an interrupted run stopped (--help: options)
  plan EXPERIMENT [--option value ...]  where arrays would live and what a step would communicate, without running one
  search EXPERIMENT [--option value ..] search over its rates and bounds; feasible first, then the validation metric
  launch --processes N -- COMMAND ...   the same command in N processes on this machine, watched
  evaluate RUN                          evaluate the best checkpoint of a run folder again
  predict RUN --text TEXT [TEXT ...]    classify texts with a text run, layer by layer (--file LINES, --gamma NOISE)
  export RUN [--out FOLDER]             write the best checkpoint's parameters as safetensors, with their configuration
  report RUN [RUN ...] [--out FOLDER]   compare runs: tables, figures, an HTML page, summary.json
  figures NAME [--option value ...]     draw the figures of a paper (yang2022) with the numbers beside them
  prepare SOURCE --from PATH            prepare a data source ahead of its first use
  list                                  the experiments
"""


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit code: 0, also for a run that SIGTERM ended and that goes on when started again,
    2 for what the user can mend, 130 for what Ctrl-C ended."""
    commands = {
        "run": _run,
        "plan": _plan,
        "search": _search,
        "launch": _launch,
        "evaluate": _evaluate,
        "predict": _predict,
        "export": _export,
        "report": _report,
        "figures": _figures,
        "prepare": _prepare,
        "list": _list,
    }
    if not arguments or arguments[0] in HELP:
        sys.stdout.write(USAGE)
        return 0 if arguments else 2
    try:
        member, arguments = _member(arguments)
        if not arguments or arguments[0] not in commands:
            raise unknown("command", arguments, list(commands))
        quiet()
        order_collectives()
        with stopping_at_once(alone=not member):
            if member:
                _check_together(arguments[0])
                from train.processes import Membership, join

                join(parse(Membership, member, "python -m train"))
            return commands[arguments[0]](list(arguments[1:])) or 0
    except Interrupted as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.code
    except UserError as error:
        return _refuse(str(error), next((word for word in arguments if word in commands), ""))
    except BrokenPipeError:
        raise
    except OSError as error:  # what no command foresaw of files and disks
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}; see to it and give the command again")
    except SystemExit:
        return 0  # help was asked for; `parse` turns every other exit into a UserError
    except KeyboardInterrupt:
        sys.stderr.write(
            "interrupted; a run, or a search, goes on from its last checkpoint when the same command is given again\n"
        )
        return CTRL_C


def _refuse(message: str, command: str = "") -> int:
    sys.stderr.write(f"error: {' '.join(as_typed(message, command).split())}\n")
    return 2


def _member(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before the command, by which this process finds the others, and what comes after them."""
    arguments, count = list(arguments), 0
    while count < len(arguments) and arguments[count].startswith("--"):
        count += 1 if "=" in arguments[count] else 2
    return arguments[:count], arguments[count:]


def _check_together(command: str) -> None:
    if command.startswith("-"):
        raise UserError(f"launch needs a command behind --, as in `launch --processes 2 -- run demo`, got {command}")
    if command not in TOGETHER:
        raise UserError(f"{command} runs in one process; several are for {', '.join(TOGETHER)}")


def _launch(arguments: list[str]) -> int:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    ours, command = arguments[:place], arguments[place + 1 :]
    if not command and not set(HELP) & set(ours):
        raise UserError("launch needs a command behind --, as in `launch --processes 2 -- run video-ut`")
    parsed = parse(LaunchArguments, ours, "python -m train launch")
    if not 1 <= parsed.processes <= MOST_PROCESSES:
        raise UserError(f"--processes must be from 1 to {MOST_PROCESSES}, got {parsed.processes}")
    _check_together(command[0])
    for option in MEMBERSHIP:
        if given(command, option):
            raise UserError(f"launch gives each process its {option}; leave it out behind --")
    from train.launch import free_port, launch

    coordinator, program = f"127.0.0.1:{free_port()}", [sys.executable, "-m", "train"]
    shared = ["--coordinator", coordinator, "--processes", str(parsed.processes)]
    return launch([[*program, *shared, "--process", str(i), *command] for i in range(parsed.processes)])


def _run(arguments: list[str]) -> None:
    if name := _experiment("run", arguments):
        from train.runs import run

        run(_configured("run", name, arguments), experiment=name)


def _plan(arguments: list[str]) -> None:
    if name := _experiment("plan", arguments):
        from train.runs import plan

        config = _configured("plan", name, arguments)
        _simulate(config.mesh)
        plan(config, experiment=name)


def _simulate(mesh: str | None) -> None:
    """Devices for a plan, which runs no step: CPUs may be as many as its mesh asks for."""
    import jax

    from train.sharding.mesh import parse_mesh

    said = SIMULATED in os.environ.get("XLA_FLAGS", "")
    if mesh is None or said or jax.distributed.is_initialized():
        return
    # Too late where this process has computed before: there, the mesh has to fit the devices that there are.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", math.prod(parse_mesh(mesh).values()))


def _search(arguments: list[str]) -> None:
    if name := _experiment("search", arguments):
        from train.compiled import keep_programs
        from train.experiments import EXPERIMENTS
        from train.search import search

        default = dataclasses.replace(EXPERIMENTS[name].config, out=None)
        whole, program = SearchArguments(config=default), f"python -m train search {name}"
        parsed = parse(SearchArguments[type(default)], arguments[1:], program, whole, hint=over_hint(arguments))
        keep_programs()
        config = _with_warmup(parsed.config, default, arguments)
        over = {option.replace("_", "-"): text for option, text in vars(parsed.over).items()}
        search(config, experiment=name, over=over, sampler=parsed.sampler, trials=parsed.trials)


def _experiment(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    from train.experiments import EXPERIMENTS  # imports JAX: not needed to say what is wrong with a command

    name, choices = arguments[0] if arguments else "", ", ".join(EXPERIMENTS)
    if name in HELP:
        sys.stdout.write(f"usage: python -m train {command} EXPERIMENT [--option value ...]\nexperiments: {choices}\n")
        return None
    if name.startswith("-"):
        raise UserError(f"{command} has its experiment first, as in `{command} demo {name} ...`, got {name}")
    if name not in EXPERIMENTS:
        raise unknown("experiment", arguments, list(EXPERIMENTS))
    return name


def _configured(command: str, name: str, arguments: list[str]) -> Any:
    """The configuration of an experiment with the options behind its name."""
    from train.compiled import keep_programs
    from train.experiments import EXPERIMENTS

    default = EXPERIMENTS[name].config
    program, hint = f"python -m train {command} {name}", elsewhere(command, arguments)
    parsed = parse(type(default), arguments[1:], program, default, hint=hint)
    keep_programs()
    return _with_warmup(parsed, default, arguments)


def _with_warmup(config: Any, default: Any, arguments: list[str]) -> Any:
    from train.constrained import fitting_warmup

    return fitting_warmup(config, default, chosen=given(arguments, "--constraints.warmup-steps"))


def _evaluate(arguments: list[str]) -> None:
    parsed = parse(EvaluateArguments, arguments, "python -m train evaluate")
    from train.compiled import keep_programs
    from train.processes import first_only
    from train.runs import evaluate

    keep_programs()
    evaluate(parsed.run, mesh=parsed.mesh, log=first_only(print))


def _predict(arguments: list[str]) -> None:
    hint = "write a text that begins with a dash as --text=TEXT or --second=TEXT, several as lines of --file"
    parsed = parse(PredictArguments, arguments, "python -m train predict", hint=hint)
    from train.text.predict import predict, read_texts

    texts, seconds = read_texts(parsed.text, parsed.second, parsed.file)
    predict(parsed.run, texts, seconds, gamma=parsed.gamma, seed=parsed.seed)


def _export(arguments: list[str]) -> None:
    parsed = parse(ExportArguments, arguments, "python -m train export")
    from train.export import export

    export(parsed.run, parsed.out, mesh=parsed.mesh)


def _report(arguments: list[str]) -> None:
    parsed = parse(ReportArguments, arguments, "python -m train report")
    from train.runs import report

    report(parsed.runs, parsed.out)


def _figures(arguments: list[str]) -> None:
    from train.figures import FIGURES, FiguresConfig  # imports JAX: not needed to say what is wrong with a command

    name, choices = arguments[0] if arguments else "", ", ".join(FIGURES)
    if name in HELP:
        sys.stdout.write(f"usage: python -m train figures NAME [--option value ...]\nfigures: {choices}\n")
        return
    if name not in FIGURES:
        raise unknown("figures", arguments, list(FIGURES))
    FIGURES[name](parse(FiguresConfig, arguments[1:], f"python -m train figures {name}"))


def _prepare(arguments: list[str]) -> None:
    parsed = parse(PrepareArguments, arguments, "python -m train prepare", hint=elsewhere("prepare", arguments))
    from train.config import check_used
    from train.data import DataConfig, images, prepare, scenes, text

    source: Any = parsed.source  # of one of four kinds, which the type checker cannot tell apart
    columns = {name: getattr(parsed, name) for name in ("text_column", "label_column", "second_column")}
    share = parsed.validation_share
    if source in get_args(TextSource):
        text.prepare(text.TextConfig(source=source, root=parsed.root, validation_share=share, **columns), log=print)
        return
    usual = PrepareArguments(source)
    check_used(parsed, usual, ((name.replace("_", "-"), "the source table", False) for name in columns))
    if source in get_args(ImageSource):
        images.prepare(images.ImageConfig(source=source, root=parsed.root, validation_share=share), log=print)
        return
    check_used(parsed, usual, [("validation-share", "a source of images with a class each, or of texts", False)])
    if source in get_args(SceneSource):
        scenes.prepare(scenes.SceneConfig(source=source, root=parsed.root), log=print)
    else:
        prepare(DataConfig(source=source, root=parsed.root), log=print)


def _list(arguments: list[str]) -> None:
    if arguments and arguments[0] in HELP:
        sys.stdout.write("usage: python -m train list\n")
        return
    if arguments:
        raise UserError(f"list takes no arguments, got {' '.join(arguments)}")
    from train.experiments import EXPERIMENTS

    for name, experiment in EXPERIMENTS.items():
        sys.stdout.write(
            f"{name}\n  {experiment.summary}\n  source: {experiment.paper}\n  expect: {experiment.expect}\n"
        )
