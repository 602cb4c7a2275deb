"""Faults of evaluation, prediction and reports."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: list[Fault] = [
    Fault(
        "a sentence of the train split may be tested on too",
        "train/data/generated.py",
        "_sentences(generator, size, seen) for split",
        "_sentences(generator, size, set()) for split",
        "tests/data/test_verdicts.py",
    ),
    Fault(
        "RMSE is not on the 0-255 scale",
        "train/tasks/video.py",
        "return float(255.0 * np.sqrt(",
        "return float(np.sqrt(",
        "tests/train/test_evaluate.py",
    ),
    Fault(
        "every batch of an evaluation has the same noise",
        "train/tasks/video_noise.py",
        "key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)",
        "key = jax.random.fold_in(jax.random.key(NOISE_SEED), 0)",
        "tests/train/test_evaluate.py",
    ),
    Fault(
        "a unit that one batch moves counts as dead",
        "train/tasks/video.py",
        "np.min(deads, axis=0)",
        "np.max(deads, axis=0)",
        "tests/train/test_evaluate.py tests/train/test_health.py",
    ),
    Fault(
        "the linear layer that models are judged by takes a mean's noise for none",
        "train/tasks/video_floors.py",
        "mean = _wiener(across, variance / length)",
        "mean = _wiener(across, 0.0)",
        "tests/train/test_video_floors.py",
    ),
    Fault(
        "the linear layer that models are judged by is fitted on the test split",
        "train/tasks/video_floors.py",
        'fit_linear(data.examples("train", batch_size=BATCH_SIZE)',
        'fit_linear(data.examples("test", batch_size=BATCH_SIZE)',
        "tests/train/test_video_floors.py",
    ),
    Fault(
        "complementary slackness is of the stated bounds",
        "train/constraints.py",
        "(self.enforced(None)(bound) - slacks)",
        "(report.violations - slacks)",
        "tests/train/test_evaluate.py",
    ),
    Fault(
        "the area under accuracies takes in the noise of training too",
        "train/tasks/text.py",
        'area_under({gamma: accuracies[gamma] for gamma in noise["test_gammas"]})',
        "area_under(accuracies)",
        "tests/text/test_noise.py tests/text/test_runs.py tests/text/test_early_exit.py",
    ),
    Fault(
        "texts are predicted by a predictor that was fitted to them",
        "train/tasks/early_exit.py",
        "calibrate(losses[other], entropies[other]).all(entropies[half])",
        "calibrate(losses[half], entropies[half]).all(entropies[half])",
        "tests/text/test_early_exit.py",
    ),
    Fault(
        "the threshold of early exit is chosen without the error of its cost",
        "train/tasks/early_exit.py",
        "if sum(cost_of_exit(exits, correct)) <= TOLERATED]",
        "if cost_of_exit(exits, correct)[0] <= TOLERATED]",
        "tests/text/test_early_exit.py",
    ),
    Fault(
        "texts of further batches have the noise of the first ones",
        "train/tasks/text.py",
        "numbers = number * TOGETHER + np.arange(len(batch.tokens))",
        "numbers = np.arange(len(batch.tokens))",
        "tests/text/test_predict.py",
    ),
    Fault(
        "the loss of a layer is of its own class and not of the last layer's",
        "train/predict.py",
        "-np.log(max(row[last], np.finfo(np.float32).tiny))",
        "-np.log(max(row.max(), np.finfo(np.float32).tiny))",
        "tests/text/test_predict.py",
    ),
    Fault(
        "one feasible seed makes a variant feasible",
        "train/report/groups.py",
        "return self.feasible_runs == len(self.runs)",
        "return self.feasible_runs > 0",
        "tests/report/test_report_summary.py",
    ),
    Fault(
        "the margin of tails is taken from the means",
        "train/report/groups.py",
        'room = bounds - losses if self.bind == "mean" else -self.stack("violations")',
        "room = bounds - losses",
        "tests/report/test_report_summary.py",
    ),
    Fault(
        "the model of larger RMSE is called the better one",
        "train/report/words.py",
        "winner = titles[0] if first < second else titles[1]",
        "winner = titles[1] if first < second else titles[0]",
        "tests/report/test_report_summary.py",
    ),
    Fault(
        "the worst excess of an ablation is its smallest",
        "train/report/figures.py",
        "np.nan if np.isnan(row).all() else np.nanmax(row) for row in excess",
        "np.nan if np.isnan(row).all() else np.nanmin(row) for row in excess",
        "tests/report/test_report_ablation.py",
    ),
]
