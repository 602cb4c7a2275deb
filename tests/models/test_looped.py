"""Models with the number of loops as an argument: against loops in NumPy, causal, carried on, and differentiated."""

import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.models import STARTS, DecoderConfig, LoopedNetwork, LoopedTransformer, rms_norm
from unroll_jax.models.language.decoder_parts import causal_mask, decoder_layer, rotation

CONFIG = DecoderConfig(11, dim=8, num_layers=2, num_heads=2, num_key_value_heads=1, hidden_dim=12, tied=False)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 5)))


def convolved(x, kernel):
    """Cross-correlation of side 3 with zero padding, position by position."""
    ndim = kernel.ndim - 2
    padded = np.pad(x, ((0, 0), *[(1, 1)] * ndim, (0, 0)))
    out = np.zeros((*x.shape[:-1], kernel.shape[-1]))
    for place in np.ndindex(*x.shape[1:-1]):
        window = padded[(slice(None), *(slice(at, at + 3) for at in place))]
        out[(slice(None), *place)] = np.tensordot(window, kernel, axes=ndim + 1)
    return out


@pytest.mark.parametrize(("ndim", "shape"), [(1, (2, 6, 1)), (2, (2, 4, 3, 3))])
def test_the_network_is_its_equation(ndim, shape, x64):
    model = LoopedNetwork(width=4, num_outputs=2, ndim=ndim, param_dtype=jnp.float64)
    x = np.random.default_rng(0).normal(size=shape)
    variables = jax.jit(lambda x: model.init(jax.random.key(0), x, loops=1))(x)
    run = lambda variables, x: model.apply(variables, x, loops=3, record=lambda logits, h: (logits, h))  # noqa: E731
    result = jax.jit(run)(variables, x)
    kernels = jax.tree.map(np.asarray, variables["params"])
    h, states = np.maximum(convolved(x, kernels["prelude"]), 0.0), []
    for _ in range(4):
        states.append(h)
        recalled = convolved(np.concatenate([h, x], -1), kernels["recall"])
        inner = np.maximum(convolved(recalled, kernels["inner"]), 0.0)
        h = np.maximum(recalled + convolved(inner, kernels["outer"]), 0.0)
    readouts = [convolved(state, kernels["readout"]) for state in states]
    chex.assert_trees_all_close(result.records, (np.stack(readouts), np.stack(states)), rtol=1e-10, atol=1e-12)
    chex.assert_trees_all_close(result.state, states[-1], rtol=1e-10, atol=1e-12)


def by_hand(params, tokens, loops, causal):
    """The transformer by a Python loop over its loops and layers."""
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    same = jnp.ones((*tokens.shape, tokens.shape[1]), bool)
    mask = causal_mask(jnp.zeros_like(tokens)) if causal else same
    angles = rotation(CONFIG, places, jnp.float64)

    def layers(stacked, y):
        for place in range(len(jax.tree.leaves(stacked)[0])):
            y = decoder_layer(CONFIG, jax.tree.map(operator.itemgetter(place), stacked), y, angles, mask)
        return y

    e = rms_norm(layers(params["prelude"], params["embedding"][tokens]), jnp.ones(8), CONFIG.norm_epsilon)
    h, logits = e, []
    for _ in range(loops + 1):
        logits.append(h @ params["head"]["embedding"].T)
        mixed = h @ params["injection"]["kernel"][:8] + e @ params["injection"]["kernel"][8:]
        h = rms_norm(layers(params["layers"], mixed), params["norm"]["scale"], CONFIG.norm_epsilon)
    return jnp.stack(logits)


def initial(model, **options):
    """Variables in the dtype of the model's parameters."""
    return jax.jit(lambda: model.init(jax.random.key(0), TOKENS, loops=1, **options))()


@pytest.mark.parametrize("causal", [True, False])
def test_the_transformer_is_its_equation(causal, x64):
    model = LoopedTransformer(CONFIG, causal=causal, param_dtype=jnp.float64)
    variables = initial(model)
    run = jax.jit(lambda tokens: model.apply(variables, tokens, loops=3).records)
    logits, expected = run(TOKENS), jax.jit(lambda params: by_hand(params, TOKENS, 3, causal))(variables["params"])
    chex.assert_trees_all_close(logits, expected, rtol=1e-9, atol=1e-12)
    changed = run(TOKENS.at[:, -1].add(1))
    assert bool((changed[:, :, :-1] == logits[:, :, :-1]).all()) == causal


def test_one_program_serves_any_number_of_loops():
    model = LoopedTransformer(CONFIG)
    variables = initial(model)
    run = jax.jit(lambda n, free: model.apply(variables, TOKENS, loops=n, free=free, most=6).records)
    whole = np.asarray(jax.jit(lambda variables: model.apply(variables, TOKENS, loops=8).records)(variables))
    for count, free in ((2, 0), (6, 0), (3, 5)):
        chex.assert_trees_all_close(run(count, free)[: count + 1], whole[free : free + count + 1], rtol=1e-4, atol=1e-5)
    assert run._cache_size() == 1


@pytest.mark.parametrize("start", STARTS)
def test_states_begin_as_named_and_are_carried_on(start):
    model = LoopedTransformer(CONFIG, start=start, prelude_layers=0)
    key = jax.random.key(1)
    variables = initial(model, key=key)

    @jax.jit
    def run(variables):
        record = lambda logits, h: (logits, h)  # noqa: E731
        whole = model.apply(variables, TOKENS, loops=5, key=key, record=record)
        first = model.apply(variables, TOKENS, loops=2, key=key)
        rest = model.apply(variables, TOKENS, loops=3, state=first.state, record=record)
        return whole.records, rest.records

    whole, rest = jax.tree.map(np.asarray, run(variables))
    size = np.sqrt(np.mean(whole[1][0] ** 2))
    assert abs(size - {"zeros": 0.0, "prelude": 1.0, "noise": 1.0}[start]) < 0.3
    chex.assert_trees_all_close(rest, jax.tree.map(lambda leaf: leaf[2:], whole), rtol=1e-4, atol=1e-5)


def test_segments_do_not_see_each_other():
    model = LoopedTransformer(CONFIG, causal=False)
    variables, segments = initial(model), jnp.array([[0, 0, 1, 1, 1]] * 2)
    run = jax.jit(lambda tokens: model.apply(variables, tokens, loops=2, segments=segments).records)
    assert bool((run(TOKENS)[:, :, :2] == run(TOKENS.at[:, 3].add(1))[:, :, :2]).all())


@pytest.mark.slow
def test_bfloat16_reads_out_in_float32():
    model = LoopedTransformer(CONFIG, dtype=jnp.bfloat16)
    both = lambda v: [m.apply(v, TOKENS, loops=2) for m in (model, LoopedTransformer(CONFIG))]  # noqa: E731
    result, full = jax.jit(both)(initial(model))
    assert (result.records.dtype, result.state.dtype) == (jnp.float32, jnp.bfloat16)
    full = full.records
    assert float(jnp.abs(result.records - full).max()) < 0.05 * float(jnp.abs(full).max()) + 0.01


@pytest.mark.slow
def test_the_implicit_gradient_of_the_transformer_is_that_of_many_loops(x64):
    model = LoopedTransformer(CONFIG, param_dtype=jnp.float64)
    variables = initial(model)
    # Half of the injection's share of the state: the block contracts, so that an equilibrium exists.
    kernel = variables["params"]["injection"]["kernel"]
    variables["params"]["injection"]["kernel"] = kernel.at[:8].multiply(0.3)

    def gradient(**options):
        return jax.jit(jax.grad(lambda v: jnp.sum(model.apply(v, TOKENS, **options).state[..., 0] ** 2)))(variables)

    implicit = gradient(loops=300, gradient="implicit", batch_ndim=1, tol=1e-12)
    chex.assert_trees_all_close(implicit, gradient(loops=150), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LoopedTransformer(CONFIG, start="ones").init(jax.random.key(0), TOKENS, loops=1), "start must be one"),
        (lambda: LoopedTransformer(CONFIG, start="noise").init(jax.random.key(0), TOKENS, loops=1), "key must be"),
        (
            lambda: LoopedTransformer(CONFIG, prelude_layers=-1).init(jax.random.key(0), TOKENS, loops=1),
            "prelude_layers must be at least 0",
        ),
        (
            lambda: LoopedTransformer(CONFIG).init(jax.random.key(0), TOKENS, loops=1, state=jnp.ones((2, 5, 3))),
            "state must",
        ),
        (lambda: LoopedNetwork(4, 2).init(jax.random.key(0), jnp.ones((2, 3)), loops=1), "x must be (batch, n"),
        (lambda: LoopedNetwork(0, 2).init(jax.random.key(0), jnp.ones((2, 3, 1)), loops=1), "width must be at least 1"),
        (lambda: LoopedNetwork(4, 2).init(jax.random.key(0), jnp.ones((2, 3, 1)), loops=0), "loops must be at least 1"),
    ],
)
def test_bad_arguments_are_named(call, message, unchecked):
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert message in str(caught.value)
