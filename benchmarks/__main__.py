"""`python -m benchmarks [NAME ...]`: runs benchmarks and prints their tables.

Each writes NAME.json, NAME.md and NAME.png into the folder of `--out`.
"""

import argparse
import datetime
import difflib
import importlib
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.compare import RecordError, comparison, read_records
from benchmarks.record import write
from unroll_jax.train.system.machine import environment, keep_memory

BENCHMARKS = {
    "constrained_step": "cost of descent constraints in a training step",
    "general_constraints": "cost of 1 to 10,000 constraints of any kind, with Cooper",
    "video_step": "a training step of the video models, against PyTorch",
    "compile_time": "compile time: its growth with depth, and of each layer",
    "growth": "growth of time and memory with layers, tokens and batch",
    "transformer_forward": "a transformer with its energies, against PyTorch",
    "encoder_throughput": "tokens per second of an encoder, against transformers",
    "fast_weights": "fast weights over a long sequence, against PyTorch",
    "layer_losses": "losses of all layers of a language model, chunked and whole",
    "gradients": "gradients through equilibria, against other libraries and unrolling",
    "weak_scaling": "communication of 8 to 512 devices, and its cost",
    "gpu": "correctness and speed on the GPU of this machine",
}
ON_REQUEST = ("gpu",)  # run only where they are named
QUICK_WITH_PEERS = ("gradients",)  # whose quick table has peers too
OPTIONS = ("--quick", "--peers", "--no-peers", "--only", "--out", "--compare", "--help")


def main(arguments: list[str]) -> int:
    """Runs benchmarks, by default all except `ON_REQUEST`, or compares two runs."""
    options = _parse(arguments)
    if options.compare is not None:
        return _compare(*options.compare)

    kept = keep_memory()
    if options.quick:
        print("quick: smaller sizes, fewer runs; bars were set for the full ones")
    conditions = _conditions(quick=options.quick, kept=kept)
    by_default = [name for name in BENCHMARKS if name not in ON_REQUEST]

    for name in options.names or by_default:
        print(f"== {name}: {BENCHMARKS[name]}", flush=True)
        peers = options.peers
        if peers is None:
            peers = name in QUICK_WITH_PEERS or not options.quick
        parts = {"only": options.only, "out": options.out} if name in ON_REQUEST else {}
        module = importlib.import_module(f"benchmarks.{name}")
        record = module.main(quick=options.quick, peers=peers, **parts)
        # None: there was nothing to measure, as on a machine without a GPU
        if record is not None:
            write(record, name, options.out, conditions | {"peers": peers})
    return 0


def _compare(old: Path, new: Path) -> int:
    try:
        print(comparison(read_records(old), read_records(new)))
    except RecordError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and exit code 2."""
        self.exit(2, f"error: {message}; see `python -m benchmarks --help`\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        parser.error(_unknown("option", unknown[0], OPTIONS))
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(_unknown("benchmark", name, BENCHMARKS))
    if options.compare is not None and options.names:
        parser.error(f"--compare takes OLD and NEW only, got also {options.names[0]!r}")
    if options.only and options.names != ["gpu"]:
        parser.error(f"--only names parts of gpu, got benchmarks {options.names}")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out}: is a file; name a folder")
    return options


def _parser() -> _Parser:
    listed = "\n".join(f"  {name:20} {what}" for name, what in BENCHMARKS.items())
    left_out = ", ".join(ON_REQUEST)
    parser = _Parser(
        prog="python -m benchmarks",
        description=f"Runs benchmarks, all but {left_out} if none is named:\n{listed}",
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
        help="other libraries too; --quick: only those of gradients",
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
    return parser


def _parts(words: str) -> list[str]:
    known = importlib.import_module("benchmarks.gpu").PARTS
    names = words.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(_unknown("part", name, known))
    return names


def _unknown(what: str, word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown {what} {word!r}{hint}; choose from {', '.join(known)}"


def _conditions(*, quick: bool, kept: bool) -> dict[str, Any]:
    """Returns the machine (by name only), versions, allocator and options."""
    versions = environment()
    names = ("platform", "cpu", "accelerator")
    machine: dict[str, Any] = {name: versions.pop(name) for name in names}
    machine["cores"] = len(os.sched_getaffinity(0))

    settings = re.compile("MALLOC_|GLIBC_TUNABLES$")
    allocator = {key: os.environ[key] for key in filter(settings.match, os.environ)}
    return {
        "date": datetime.date.today().isoformat(),
        "quick": quick,
        "machine": machine,
        "versions": versions,
        "allocator": {"keeps_memory": kept, **allocator},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
