"""Adds accuracies under noise and attacks to the evaluation.json of runs."""

import sys

from papers.command import run_command
from papers.xie2021.robustness import RobustnessConfig, robustness
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.core.evaluate import best_checkpoint
from unroll_jax.train.loading import open_run
from unroll_jax.train.system.files import read_object, write_json
from unroll_jax.train.tasks.images.options import ImageTaskConfig


def evaluate(config: RobustnessConfig) -> None:
    """Adds the figures of the best checkpoint to evaluation.json of each run."""
    for folder in config.runs:
        experiment, task, plan = open_run(folder, writes=True)
        if not isinstance(task.options, ImageTaskConfig):
            raise UserError(
                f"{folder} is a run of {task.options.task}, not of an image classifier;"
                " leave it out"
            )
        best = best_checkpoint(task, plan, folder, experiment=experiment)
        figures = robustness(task, best.state.params, config)
        file = folder / "evaluation.json"
        write_json(file, {**read_object(file), **figures})
        shown = {name: figures[name] for name in figures if name.endswith("_accuracy")}
        sys.stdout.write(f"{folder}: {shown}\n")


def main(arguments: list[str]) -> int:
    """Evaluates runs, and returns the exit code."""
    program = "python -m papers.xie2021"
    spelled = {"runs": "RUNS"}
    return run_command(evaluate, RobustnessConfig, arguments, program, spelled)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
