"""`python -m papers.looped [--option value ...]` trains one network, and prints the
table of all in its folder."""

import sys

from papers.looped.evaluation import run, table
from papers.looped.study import Study
from unroll_jax.train.cli import parse
from unroll_jax.train.config.errors import UserError, on_command_line
from unroll_jax.train.config.fields import check_fields


def main(arguments: list[str]) -> int:
    """Runs a study; returns the exit code, 2 for a mistake of the user."""
    try:
        with on_command_line({}):
            study = parse(Study, arguments, "python -m papers.looped")
            check_fields(study)
        run(study)
        sys.stdout.write(table(study.out))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except SystemExit:
        return 0  # help was asked for
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
