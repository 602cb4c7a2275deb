"""`python -m train`."""

import os
import sys

from train.cli import main

CLOSED_PIPE = 141  # what shells say of a program whose reader, such as `head`, has gone: 128 and SIGPIPE


def run() -> int:
    """Runs the command that was given; a reader of its output that leaves early ends it in silence."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more as it exits: let it do so into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return code


if __name__ == "__main__":
    sys.exit(run())
