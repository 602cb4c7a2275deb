"""Faults of sparse coding."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: list[Fault] = [
    Fault(
        "codes are those of a few steps",
        "train/data/lasso.py",
        "MAX_STEPS, TOLERANCE)  # noqa: E731",
        "10, TOLERANCE)  # noqa: E731",
        "tests/sparse_coding/test_data.py",
    ),
    Fault(
        "codes of the test split stand beside images of another",
        "train/data/codes.py",
        "_records(grey[split], codes[split])",
        "_records(grey[split], codes[split][::-1])",
        "tests/sparse_coding/test_data.py",
    ),
    Fault(
        "other sparsities share prepared codes",
        "train/data/codes.py",
        'config.dictionary, size, f"{config.sparsity:g}"]',
        "config.dictionary, size]",
        "tests/sparse_coding/test_data.py",
    ),
    Fault(
        "relative errors are of half squares",
        "train/tasks/sparse_coding.py",
        "return float(2.0 * np.mean(",
        "return float(np.mean(",
        "tests/sparse_coding/test_task.py",
    ),
    Fault(
        "ISTA beside a network starts as noise where that does",
        "train/tasks/sparse_coding.py",
        "self.model.clone(noise=None).init(",
        "self.model.init(",
        "tests/sparse_coding/test_task.py",
    ),
    Fault(
        "a lost layer is not lost",
        "train/tasks/sparse_coding.py",
        "in_turn(lost_layer(lost), noisy)",
        "noisy",
        "tests/sparse_coding/test_task.py",
    ),
    Fault(
        "the linear map has the worst penalty",
        "train/tasks/code_floors.py",
        "return min((model.predict for model in models), key",
        "return max((model.predict for model in models), key",
        "tests/sparse_coding/test_task.py",
    ),
    Fault(
        "noise on layers is the same for all images",
        "train/tasks/sparse_coding.py",
        "jax.random.split(of_layers, len(codes))",
        "jnp.broadcast_to(of_layers, (len(codes),))",
        "tests/sparse_coding/test_task.py",
    ),
]
