"""`unroll-jax`: the commands and their exit codes."""

import contextlib
import dataclasses
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from unroll_jax import __version__

try:
    from . import main as commands
    from .cli import (
        HELP,
        EvaluateArguments,
        GenerateArguments,
        PredictArguments,
        parse,
        unknown,
    )
    from .config.errors import Interrupted, UserError, on_command_line, one_line
    from .config.run import Membership
    from .system import machine
    from .system.files import system_errors
    from .system.terminal import safe_output
except ModuleNotFoundError as error:
    if (error.name or "").startswith(("unroll_jax", "train")):
        raise
    sys.stderr.write(
        f"error: {error.name} must be installed first: pip install"
        " 'unroll_jax[train]'\n"
    )
    raise SystemExit(2) from None

# what shells say of a program whose reader, such as `head`, has gone: 128 and SIGPIPE
CLOSED_PIPE = 141
TOGETHER = ("run", "plan", "evaluate")  # the commands that many processes run as one
# the commands that take every option of a configuration
WITH_CONFIG = ("run", "demo", "plan", "sweep")
OF_OTHERS = {
    field.name
    for kind in (EvaluateArguments, PredictArguments, GenerateArguments)
    for field in dataclasses.fields(kind)
}
OF_PREPARE = {
    "root": "--from",
    "data.root": "--from",
    "data.prepared": "UNROLL_PREPARED",
    "data.source": "prepare",
}
OF_PREPARE |= {
    f"data.{name}_column": f"--{name}-column" for name in ("text", "label", "second")
}
USAGE = """\
usage: unroll-jax [--coordinator HOST:PORT --processes N --process I | --cluster NAME]
                  COMMAND ...

  run EXPERIMENT [--option value ...]   train and evaluate; resumes an interrupted run
  run FOLDER [--option value ...]       go on with the run in a folder
  demo [--option value ...]             short for run demo: one network, trained in
                                        three ways, in minutes
  plan EXPERIMENT [--option value ...]  the memory of a step on each device, without
                                        running one
  sweep EXPERIMENT --over.OPTION V,V    a grid of runs and its table, as
                                        depth x method x seed
  evaluate RUN                          evaluate the best checkpoint of a run folder
                                        again
  predict RUN --file FILE [FILE ...]    what a run makes of pictures, clips, tables or
                                        texts (--text TEXT; --out FOLDER or JSONL)
  generate SOURCE --prompts FILE        answer prompts with a language model
                                        (--out JSON, --gamma NOISE)
  export RUN [--format transformers]    write the best checkpoint's parameters as
                                        safetensors, with their configuration
  report RUN [RUN ...] [--out FOLDER]   compare runs: tables, figures, an HTML page,
                                        summary.json
  prepare SOURCE --from PATH            prepare a data source ahead of its first use
  list [WORD] [--all]                   the experiments by task; with a word, those it
                                        names, with details
  --version                             the version of unroll_jax

COMMAND --help shows its options, as in `run demo --help`
"""


@safe_output()
def main(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code: 0, also for a run that SIGTERM ended
    and that resumes when started again; 2 for an error that the user can mend; 130
    after Ctrl-C.
    """
    if not arguments or arguments[0] in HELP:
        sys.stdout.write(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        sys.stdout.write(f"unroll_jax {__version__}\n")
        return 0
    try:
        member, arguments = _member(arguments)
        if not arguments or arguments[0] not in COMMANDS:
            raise unknown("command", arguments, list(COMMANDS))
        # no warnings of XLA, as on SIGTERM
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        machine.keep_memory()
        machine.order_collectives()
        with machine.stopping_at_once(alone=not member):
            if member:
                if arguments[0] not in TOGETHER:
                    several = f"several are for {', '.join(TOGETHER)}"
                    raise UserError(f"{arguments[0]} runs in one process; {several}")
                from .system.distributed import join

                join(parse(Membership, member, "unroll-jax"))
            names = OF_PREPARE if arguments[0] == "prepare" else None
            every = names or arguments[0] in WITH_CONFIG
            with (
                on_command_line(names, only=None if every else OF_OTHERS),
                system_errors(),
            ):
                return COMMANDS[arguments[0]](list(arguments[1:])) or 0
    except Interrupted as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.code
    except BrokenPipeError:
        raise
    except UserError as error:
        return _failed(error)
    except (OSError, MemoryError) as error:  # of the machine
        error.add_note("see to it and give the same command again")
        return _failed(error)
    except (AssertionError, RuntimeError):  # of JAX without a device
        try:
            machine.require_device()
        except UserError as error:
            return _failed(error)
        raise
    except SystemExit:
        return 0  # of help. `parse` turns every other exit into a UserError
    except KeyboardInterrupt:  # raised by a library
        sys.stderr.write("interrupted; the same command goes on from what is saved\n")
        return machine.CTRL_C


def run() -> int:
    """Runs the command that was given. A reader of its output that leaves early ends
    it in silence."""
    # as in the background of a script
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        # outside of `main`, Ctrl-C is not a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        code = CLOSED_PIPE
    except OSError as error:
        _discard_output()
        sys.stderr.write(
            f"error: cannot write to the standard output ({error.strerror}); send it"
            " elsewhere\n"
        )
        code = 2
    except Exception:
        traceback.print_exc()
        code = 1
    jax = sys.modules.get("jax")
    # else other processes wait for a good-bye
    if (code or machine.HEARD) and not (jax and jax.distributed.is_initialized()):
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        # Threads of JAX that still compute crash where Python is taken down under
        # them, and those of Orbax wait forever for a disk that refused a file.
        os._exit(code)
    return code


def _of(module: str) -> Callable[[list[str]], int | None]:
    """The `command` of a module, which is imported when it is given."""
    return lambda arguments: importlib.import_module(f".{module}", __package__).command(
        arguments
    )


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "run": commands.run,
    "demo": lambda arguments: commands.run(["demo", *arguments]),
    "plan": commands.plan,
    "sweep": _of("sweep"),
    "evaluate": commands.evaluate_again,
    "predict": _of("predict"),
    "generate": _of("generation"),
    "export": _of("exporting"),
    "report": commands.report,
    "prepare": commands.prepare,
    "list": commands.show,
}


def _failed(error: BaseException) -> int:
    sys.stderr.write(f"error: {one_line(error)}\n")
    return 2


def _member(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the options before the command, by which this process finds the others,
    from the rest."""
    arguments, count = list(arguments), 0
    while count < len(arguments) and arguments[count].startswith("--"):
        count += 1 if "=" in arguments[count] else 2
    return arguments[:count], arguments[count:]


def _discard_output() -> None:
    """Sends stdout to nothing: Python flushes it once more as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(run())
