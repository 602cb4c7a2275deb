"""Adds accuracies under noise and attacks to the evaluation.json of runs."""

import sys

from papers.xie2021.robustness import RobustnessConfig, robustness
from unroll_jax.train.cli import parse
from unroll_jax.train.config.errors import UserError, on_command_line
from unroll_jax.train.evaluate import best_checkpoint
from unroll_jax.train.loading import open_run
from unroll_jax.train.system.files import AGAIN, read_object, write_json, writing
from unroll_jax.train.tasks.images import ImageTask, SceneTask


def evaluate(config: RobustnessConfig) -> None:
    """Adds the figures of the best checkpoint to evaluation.json of each run."""
    config.check()
    for folder in config.runs:
        experiment, task = open_run(folder, writes=True)
        if not isinstance(task, ImageTask) or isinstance(task, SceneTask):
            raise UserError(
                f"{folder} is a run of {task.config.task}, not of an image classifier;"
                " leave it out"
            )
        best = best_checkpoint(task, folder, experiment=experiment)
        figures = robustness(task, best.state.params, config)
        with writing(f"run folder {folder}", AGAIN):
            write_json(
                folder / "evaluation.json",
                {**read_object(folder / "evaluation.json"), **figures},
            )
        shown = {name: figures[name] for name in figures if name.endswith("_accuracy")}
        sys.stdout.write(f"{folder}: {shown}\n")


def main(arguments: list[str]) -> int:
    """Evaluates runs; returns the exit code, 2 for a mistake of the user."""
    try:
        with on_command_line({"runs": "RUNS"}):
            evaluate(parse(RobustnessConfig, arguments, "python -m papers.xie2021"))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except SystemExit:
        return 0  # help was asked for
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
