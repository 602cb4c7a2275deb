"""How supervised experiments train: steps, what is said of them, and validation."""

from typing import Any

from train.metrics import numbers
from train.recipe import Recipe, Validation, check_batch_size, require_finite
from train.sharding import gather_first, make_mesh, own_rows
from train.supervised.config import SupervisedConfig
from train.supervised.evaluate import make_split_scores, norms_of
from train.supervised.objective import scores
from train.supervised.optimizers import optimizer
from train.supervised.state import Metrics, State, init_state, make_step
from train.supervised.task import Task

__all__ = ["steps_an_epoch", "supervised_recipe"]


def steps_an_epoch(config: SupervisedConfig, data: Any) -> int:
    """Steps in which the train split is seen once, but for a rest that is smaller than a batch."""
    return max(data.num_examples("train") // config.batch_size, 1)


def supervised_recipe(config: SupervisedConfig, task: Task, data: Any, *, best_by: str) -> Recipe:
    """The recipe of one run; ``best_by`` names the one of `Scores` that the best checkpoint is best in.

    Raises:
      UserError: if the batch is larger than the train split, or the mesh does not fit the devices or the batch.
    """
    check_batch_size(config.batch_size, data.num_examples("train"), "examples")
    epoch = steps_an_epoch(config, data)
    num_steps = config.epochs * epoch
    rule = optimizer(config.optimizer, num_steps=num_steps, steps_an_epoch=epoch)
    mesh = make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)
    # A solver applies a layer many times: parameters that are stored in shares are gathered once.
    task = task._replace(loss=gather_first(task.loss, mesh), measure=gather_first(task.measure, mesh))
    reading = {"batch_size": config.batch_size, "seed": config.seed, "rows": own_rows(mesh, config.batch_size)}
    split_scores = make_split_scores(task, data, config.batch_size)

    def validate(state: State) -> Validation:
        found = split_scores(state.evaluated, "validation")
        require_finite(int(state.step), found.loss, "validation loss")
        row = {"loss": found.loss, **found.scores._asdict(), **_figures(found.equilibrium)}
        norms = norms_of(config, data, state.evaluated)
        if norms:
            row["weight_norms"] = numbers(norms.values())
        return Validation(row, score=getattr(found.scores, best_by))

    return Recipe(
        title=type(config.network).__name__.removesuffix("Config"),  # pyright: ignore[reportAttributeAccessIssue]
        mesh=mesh,
        num_steps=num_steps,
        validate_every=config.validate_every * epoch,
        stop_on_collapse=False,
        init=lambda: init_state(config, task, rule),
        step=make_step(config, task, rule),
        batches=lambda start: data.batches("train", start_step=start, **reading),
        describe=_describe,
        validate=validate,
        rates="--optimizer.learning-rate or --optimizer.clip-norm",
    )


def _describe(step: int, values: Metrics) -> tuple[dict[str, Any], dict[str, str]]:
    require_finite(step, values.loss, "loss")
    require_finite(step, values.grad_norm, "gradient")
    accuracy = scores(values.matrix).accuracy
    row = {
        "loss": float(values.loss),
        "accuracy": accuracy,
        **_figures(values.equilibrium),
        **_figures(values.adjoint, "adjoint_"),
        "grad_norm": float(values.grad_norm),
    }
    return row, {"loss": f"{row['loss']:.3f}", "accuracy": f"{accuracy:.1%}"}


def _figures(found: Any, prefix: str = "") -> dict[str, float | None]:
    return dict(zip((prefix + name for name in found._fields), numbers(found), strict=True))
