"""`python -m papers.looped [--option value ...]` trains a network, prints the table.

The table is of all networks in the folder.
"""

import sys

from papers.command import run_command
from papers.looped.evaluation import run, table
from papers.looped.study import Study


def study_and_print(study: Study) -> None:
    """Runs a study, and prints the table of its folder."""
    run(study)
    sys.stdout.write(table(study.out))


def main(arguments: list[str]) -> int:
    """Runs a study, and returns the exit code."""
    return run_command(study_and_print, Study, arguments, "python -m papers.looped", {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
