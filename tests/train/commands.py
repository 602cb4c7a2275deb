"""Commands in tests: their errors, and the files that they leave."""

import json

from unroll_jax.train.__main__ import main


def refused(capsys, *arguments):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def quiet(line):
    """Takes the lines of a log, and drops them."""


def read(path):
    return json.loads(path.read_text())


def status_of(folder):
    return read(folder / "status.json")


def metrics_of(folder):
    return (folder / "metrics.jsonl").read_text()


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def files_of(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
