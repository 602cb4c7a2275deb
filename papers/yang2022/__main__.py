"""`python -m papers.yang2022 [--option value ...]` draws the figures, with their
numbers."""

import sys

from papers.yang2022.config import FiguresConfig
from papers.yang2022.figures import draw
from unroll_jax.train.cli import parse
from unroll_jax.train.config.errors import UserError, on_command_line


def main(arguments: list[str]) -> int:
    """Draws the figures; returns the exit code, 2 for an error of the user's."""
    try:
        with on_command_line({"model.embeddings": "--embeddings"}):
            draw(parse(FiguresConfig, arguments, "python -m papers.yang2022"))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except SystemExit:
        return 0  # help was asked for
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
