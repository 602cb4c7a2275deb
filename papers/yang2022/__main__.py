"""`python -m papers.yang2022 [--option value ...]` draws figures with their numbers."""

import sys

from papers.command import run_command
from papers.yang2022.config import FiguresConfig
from papers.yang2022.figures import draw


def main(arguments: list[str]) -> int:
    """Draws the figures, and returns the exit code."""
    spelled = {"model.embeddings": "--embeddings"}
    program = "python -m papers.yang2022"
    return run_command(draw, FiguresConfig, arguments, program, spelled)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
