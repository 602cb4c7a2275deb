"""A user's own task: a linear layer that denoises rows of eight equal numbers."""

import jax.numpy as jnp
import numpy as np

from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.config.run import PrimalConfig
from unroll_jax.train.tasks.own.options import OwnConfig
from unroll_jax.train.tasks.own.task import own_task

# a run may go on to more steps
STEADY = PrimalConfig(schedule="constant", warmup_share=0.0)


def arrays(count, seed):
    generator = np.random.default_rng(seed)
    clean = generator.normal(size=(count, 1)).astype(np.float32) * np.ones(
        8, np.float32
    )
    return {
        "clean": clean,
        "noisy": clean + generator.normal(size=clean.shape).astype(np.float32),
    }


TRAIN, VALIDATION = arrays(64, 0), arrays(16, 1)


def layer_losses(params, batch):
    outputs = [batch["noisy"], batch["noisy"] @ params["w"]]
    return jnp.stack(
        [jnp.mean((output - batch["clean"]) ** 2, -1) for output in outputs], -1
    )


def equal_weights(key):
    return {"w": jnp.full((8, 8), 0.1)}


def linear(
    *,
    init=equal_weights,
    losses=layer_losses,
    train=TRAIN,
    test=None,
    functions=None,
    **options,
):
    constraints = ConstraintConfig(alpha=(0.1,), reference=None)
    usual = {
        "steps": 6,
        "validate_every": 2,
        "batch_size": 8,
        "constraints": constraints,
        "primal": STEADY,
    }
    return own_task(
        init,
        losses,
        train=train,
        validation=VALIDATION,
        test=test,
        config=OwnConfig(**usual | options),
        **(functions or {}),
    )
