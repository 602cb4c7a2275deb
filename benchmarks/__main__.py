"""`python -m benchmarks [NAME ...]`: runs benchmarks, prints their tables, writes
NAME.json, .md and .png."""

import argparse
import datetime
import difflib
import importlib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.compare import Unreadable, comparison, read_records
from benchmarks.record import write
from unroll_jax.train.system.machine import environment, keep_memory

BENCHMARKS = {
    "constrained_step": "what descent constraints cost a training step",
    "general_constraints": (
        "what 1 to 10,000 constraints of any kind cost a training step, against Cooper"
    ),
    "video_step": "what a training step of the video models costs, against PyTorch",
    "compile_time": "whether compile time grows with depth",
    "growth": "how time and memory grow with layers, tokens and batch",
    "transformer_forward": (
        "what a transformer with its energies costs, against PyTorch"
    ),
    "encoder_throughput": (
        "how many tokens a second an encoder takes, against that of transformers"
    ),
    "fast_weights": (
        "what fast weights cost over a long sequence, against a chunked delta rule in"
        " PyTorch"
    ),
    "layer_losses": (
        "what losses of all layers of a language model cost, chunked and by whole"
        " logits"
    ),
    "gradients": (
        "what gradients through equilibria cost, against other libraries and unrolling"
    ),
    "weak_scaling": "what 8 to 512 devices say to each other, and what that costs",
    "gpu": "what is right, and how quick, on the GPU that is here",
}
ON_REQUEST = ("gpu",)  # run only where they are named
OPTIONS = ("--quick", "--peers", "--no-peers", "--only", "--out", "--compare", "--help")


def main(arguments: list[str]) -> int:
    """Runs the named benchmarks, or all except `ON_REQUEST`, or compares two earlier
    runs."""
    options = _parse(arguments)
    if options.compare is not None:
        old, new = options.compare
        try:
            print(comparison(read_records(old), read_records(new)))
        except Unreadable as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        return 0
    kept = keep_memory()
    peers = not options.quick if options.peers is None else options.peers
    if options.quick:
        print("quick: smaller sizes, fewer runs; bars were set for the full ones")
    for name in options.names or [
        name for name in BENCHMARKS if name not in ON_REQUEST
    ]:
        print(f"== {name}: {BENCHMARKS[name]}", flush=True)
        parts = {"only": options.only, "out": options.out} if name in ON_REQUEST else {}
        record = importlib.import_module(f"benchmarks.{name}").main(
            quick=options.quick, peers=peers, **parts
        )
        if record is not None:  # there was nothing to measure
            write(
                record,
                name,
                options.out,
                _conditions(quick=options.quick, peers=peers, kept=kept),
            )
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and exit code 2."""
        self.exit(2, f"error: {message}; see `python -m benchmarks --help`\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    listed = "\n".join(
        f"  {name:20} {question}" for name, question in BENCHMARKS.items()
    )
    parser = _Parser(
        prog="python -m benchmarks",
        description=(
            f"Runs benchmarks, all but {', '.join(ON_REQUEST)} if none is"
            f" named:\n{listed}"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smaller sizes, fewer runs: minutes for all",
    )
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        help="other libraries too; --quick: not",
    )
    parser.add_argument(
        "--only", type=_parts, metavar="PART,...", help="parts of gpu, in this order"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/benchmarks"),
        metavar="FOLDER",
        help="%(default)s",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("OLD", "NEW"),
        help="two earlier runs: folders, or files in them",
    )
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        parser.error(
            f"unknown option {unknown[0]!r}{_near(unknown[0], OPTIONS)}; there are"
            f" {', '.join(OPTIONS)}"
        )
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(
                f"unknown benchmark {name!r}{_near(name, BENCHMARKS)}; choose from"
                f" {', '.join(BENCHMARKS)}"
            )
    if options.compare is not None and options.names:
        parser.error(
            f"--compare takes OLD and NEW alone, got also {options.names[0]!r}"
        )
    if options.only and options.names != ["gpu"]:
        parser.error(f"--only names parts of gpu, got benchmarks {options.names}")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out}: is a file; name a folder")
    return options


def _parts(words: str) -> list[str]:
    known, names = importlib.import_module("benchmarks.gpu").PARTS, words.split(",")
    for name in names:
        if name not in known:
            problem = (
                f"unknown part {name!r}{_near(name, known)}; choose from"
                f" {', '.join(known)}"
            )
            raise argparse.ArgumentTypeError(problem)
    return names


def _near(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _conditions(*, quick: bool, peers: bool, kept: bool) -> dict[str, Any]:
    """Returns the conditions of the figures: machine by name only, versions,
    allocator and options."""
    versions = environment()
    machine = {key: versions.pop(key) for key in ("platform", "cpu", "accelerator")}
    told = {
        key: value
        for key, value in os.environ.items()
        if key.startswith("MALLOC_") or key == "GLIBC_TUNABLES"
    }
    return {
        "date": datetime.date.today().isoformat(),
        "quick": quick,
        "peers": peers,
        "machine": machine | {"cores": len(os.sched_getaffinity(0))},
        "versions": versions,
        "allocator": {"keeps_memory": kept, **told},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
