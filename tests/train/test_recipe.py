"""What every task refuses before it makes anything of a batch's size."""

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.tasks.common import check_batch_size


def test_a_batch_larger_than_the_train_split_is_refused_with_both_sizes():
    check_batch_size(1000, 1000, "texts")
    with pytest.raises(UserError, match="batch_size must be at most the 1,000 texts of the train split, got 1001"):
        check_batch_size(1001, 1000, "texts")
