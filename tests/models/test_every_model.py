"""Properties of every model whose layers can all be read: batches, records, dtypes,
gradients, memory, its program."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests import reference
from tests.marks import in_float64, nightly
from tests.models import (
    decoder_reference,
    encoder_reference,
    test_decoder,
    test_dust,
    test_encoder,
    test_lista,
    test_vit,
)
from tests.models import test_unrolled_transformer as ut
from tests.models.drawing import drawn, float64, moved, normal, vdot
from tests.reference import compiled, gaussian, gaussian_like
from unroll_jax.models import (
    DUST,
    LISTA,
    Classifier,
    Decoder,
    Encoder,
    UnrolledClassifier,
    UnrolledTransformer,
    ViT,
)
from unroll_jax.models.classifier import POOLINGS
from unroll_jax.perturbations import layer_noise, lost_layer

DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


class Case(NamedTuple):
    make: Callable[..., Any]
    draw: Callable[..., jax.Array]
    reference: Callable[[Any, Any], np.ndarray]
    shape: tuple[int, ...]
    scale: float = 0.5


def of(cls, config):
    return lambda depth=3, **options: cls(
        dataclasses.replace(config, num_layers=depth), **options
    )


def dust(**fixed):
    return lambda depth=3, **options: DUST(
        4, 7, depth, sparsity=0.05, **fixed, **options
    )


def sequences(*batch, dtype=jnp.float32):
    return normal(*batch, 5, 4, dtype=dtype)


CASES = {
    "decoder": Case(
        of(Decoder, test_decoder.SMALL),
        lambda *batch, dtype=None: test_decoder.random_tokens(*batch, 5),
        lambda params, x: decoder_reference.outputs(
            float64(params)["params"], x, test_decoder.SMALL
        ),
        (5, 8),
    ),
    "encoder": Case(
        of(Encoder, test_encoder.SMALL),
        lambda *batch, dtype=None: test_encoder.random_tokens(*batch, 5),
        lambda params, x: encoder_reference.outputs(
            float64(params)["params"], x, test_encoder.SMALL
        ),
        (5, 8),
    ),
    "vit": Case(
        of(ViT, test_vit.CASES["residual"]),
        lambda *batch, dtype=jnp.float32: test_vit.frames(*batch, dtype=dtype),
        lambda params, x: test_vit.reference_outputs(
            params, np.asarray(x, np.float64), test_vit.CASES["residual"]
        ),
        (5, 4),
        0.4,
    ),
    "unrolled transformer": Case(
        lambda depth=3, **options: UnrolledTransformer(4, depth, rank=2, **options),
        sequences,
        ut.reference_outputs,
        (5, 4),
    ),
    "dust": Case(
        dust(train_attention=True), sequences, test_dust.reference_outputs, (5, 4)
    ),
    "tied dust": Case(dust(tied=True), sequences, test_dust.reference_outputs, (5, 4)),
    "lista": Case(
        lambda depth=3, **options: LISTA(4, 7, depth, **options),
        sequences,
        test_lista.reference_codes,
        (5, 7),
    ),
}
QUICK = ("unrolled transformer",)
# theirs are those of dust
OWN_LAYERS = [name for name in CASES if name not in ("tied dust", "lista")]
every_model = pytest.mark.parametrize("name", CASES)
every_layer = pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=nightly)
        for name in OWN_LAYERS
    ],
)


@in_float64
@every_model
def test_outputs_gradients_records_and_perturbations_equal_the_reference(
    name,
):
    """Gradients against finite differences of the reference. Records take the place
    of outputs."""
    case = CASES[name]
    model = case.make(param_dtype=jnp.float64, remat=DOTS)
    x = case.draw(2, 3, dtype=jnp.float64)
    params = drawn(model, case.draw(dtype=jnp.float64), scale=case.scale)
    direction = gaussian_like(params, seed=5)
    weight = gaussian(4, 2, 3, *case.shape, seed=1)

    record = lambda y: (y, jnp.mean((y - 1.0) ** 2, axis=(-2, -1)), jnp.max(y))

    @compiled
    def run(params, lost, noise):
        lose = lost_layer(lost)
        shake = layer_noise(jax.random.key(1, impl="rbg"), noise)

        def perturb(layer, before, y):
            return shake(layer, before, lose(layer, before, y))

        # which takes no perturbation of layers
        options = {} if name == "encoder" else {"perturb": perturb}

        def apply(params):
            return model.apply(params, x, record=record, **options)

        records, pull = jax.vjp(apply, params)
        return records, pull((weight, *map(jnp.zeros_like, records[1:])))[0]

    (outputs, losses, largest), gradient = run(params, 0, 0.0)
    if name != "encoder":
        lost, noisy = (run(params, *each)[0][0] for each in ((2, 0.0), (0, 0.1)))
        if name != "dust":  # its layers read codes by different dictionaries
            assert_allclose(lost[2], outputs[1], rtol=1e-9, atol=1e-10)
        assert not np.allclose(lost[3], outputs[3])
        assert np.all(np.max(np.abs(noisy - outputs), axis=(1, 2, 3, 4))[1:] > 1e-3)

    def expected(params):
        each = [
            [case.reference(params, rows) for rows in block] for block in np.asarray(x)
        ]
        return np.moveaxis(np.array(each), 2, 0)

    assert outputs.shape == (4, 2, 3, *case.shape)
    assert_allclose(outputs, expected(params), rtol=1e-9, atol=1e-10)
    assert_allclose(losses, np.mean((outputs - 1.0) ** 2, axis=(-2, -1)), rtol=1e-9)
    assert_allclose(largest, np.max(outputs, axis=(1, 2, 3, 4)), rtol=1e-9)
    shifted = lambda distance: np.sum(
        weight * expected(moved(params, direction, distance))
    )
    along = reference.directional_derivative(shifted, 0.0, 1.0, width=1e-6)
    assert_allclose(vdot(gradient, direction), along, rtol=1e-6)


SIXTY_FOUR = {"param_dtype": jnp.float64}
ENCODERS = {
    kind: Encoder(test_encoder.KINDS[kind], unroll=1, **SIXTY_FOUR)
    for kind in ("bert", "roberta")
}
NOISE = {"perturbation": gaussian(2, 4, 8, seed=3)}
SIGNALS = {"x": gaussian(2, 4, 4, seed=4)}
WORDS = {"tokens": np.array([[3, 7, 2, 9], [8, 2, 4, 5]], np.int32)}
KINDS_OF_TOKENS = {"token_types": np.array([[0, 0, 1, 1], [0, 1, 1, 0]])}


def fillings(*tokens):
    return [{"tokens": n, "perturbation": np.nan, "token_types": 99} for n in tokens]


# Models, their inputs, and values at the padding: NaN, or a token or a kind out of
# range.
PADDED: dict[str, tuple[Any, dict[str, np.ndarray], list[dict[str, Any]]]] = {
    "roberta": (
        ENCODERS["roberta"],
        WORDS | NOISE,
        fillings(17, -1, 30),
    ),
    **{
        f"pooling {kind}": (
            Classifier(ENCODERS["bert"], 3, kind, "tanh"),
            WORDS | KINDS_OF_TOKENS | NOISE,
            fillings(17, -1, 30),
        )
        for kind in POOLINGS
    },
    "unrolled classifier": (
        UnrolledClassifier(
            UnrolledTransformer(8, 3, rank=2, unroll=1, **SIXTY_FOUR),
            11,
            3,
            max_positions=8,
        ),
        WORDS | NOISE,
        fillings(-1, 11, 10**6),
    ),
    "unrolled transformer": (
        UnrolledTransformer(4, 3, rank=2, unroll=1, **SIXTY_FOUR),
        SIGNALS,
        [{"x": 1e3}],
    ),
    **{
        f"dust, self_loops={loops}": (
            DUST(4, 7, 3, self_loops=loops, unroll=1, **SIXTY_FOUR),
            SIGNALS,
            [{"x": np.nan}, {"x": 1e3}],
        )
        for loops in (True, False)
    },
}
SLOW = ("roberta", "pooling first", "dust, self_loops=False")


@in_float64
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=nightly) if n in SLOW else n for n in PADDED],
)
def test_padding_changes_neither_outputs_nor_gradients_of_real_tokens(name):
    model, inputs, paddings = PADDED[name]
    params = drawn(model, next(iter(inputs.values())), scale=0.4)
    direction = gaussian_like(params, seed=5)

    def loss(params, inputs, mask, places):
        outputs = model.apply(params, mask=mask, **inputs)
        # (layers, batch, n, d), or logits
        real = outputs[:, :, places] if outputs.ndim == 4 else outputs
        return jnp.sum(jnp.sin(real)), real

    run = compiled(jax.value_and_grad(loss, has_aux=True))
    plain = compiled(loss)

    def shifted(distance):
        weights = moved(params, direction, distance)
        return plain(weights, inputs, np.ones((2, 4), bool), np.arange(4))

    expected = shifted(0.0)
    first = None
    along = reference.directional_derivative(
        lambda distance: shifted(distance)[0], 0.0, 1.0, width=1e-4
    )
    for where in ([0, 1, 2, 3], [3, 4, 5, 6], [0, 2, 3, 5]):
        for filling in paddings:

            def padded(values, filling):
                longer = np.full((2, 7, *values.shape[2:]), filling, values.dtype)
                longer[:, where] = values  # noqa: B023
                return longer

            longer = {key: padded(value, filling[key]) for key, value in inputs.items()}
            actual, gradient = run(
                params, longer, padded(np.ones((2, 4), bool), False), np.array(where)
            )
            chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-11)
            assert_allclose(vdot(gradient, direction), along, rtol=1e-9)
            first = gradient if first is None else first
            chex.assert_trees_all_close(gradient, first, rtol=1e-9, atol=1e-11)


@every_layer
def test_bfloat16_layers_keep_float32_parameters_outputs_and_records(name):
    case = CASES[name]
    narrow = case.make(dtype=jnp.bfloat16, unroll=1)
    wide = case.make(unroll=1)
    x = case.draw(2)
    params = drawn(narrow, x, scale=0.2)
    outputs, expected = compiled(
        lambda params: (narrow.apply(params, x), wide.apply(params, x))
    )(params)

    def loss(params):
        y = narrow.apply(params, x, record=lambda y: y)
        return jnp.sum(y), y

    recorded = jax.eval_shape(jax.value_and_grad(loss, has_aux=True), params)
    leaves = jax.tree.leaves((params, outputs, recorded))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}
    assert_allclose(outputs, expected, atol=0.05 * np.max(np.abs(expected)))
    # it did compute in bfloat16
    assert np.any(outputs[1:] != expected[1:])
    if jnp.issubdtype(x.dtype, jnp.floating):  # narrow inputs are read out wide
        given = jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
        assert jax.eval_shape(wide.apply, params, given).dtype == jnp.float32
    else:
        products = re.findall(
            r"dot_general.*: \((.*)\) ->",
            jax.jit(narrow.apply).lower(params, x).as_text(),
        )
        assert len(products) > 0
        assert all("xf32" not in factors for factors in products)


@every_layer
def test_unrolling_and_remat_change_only_the_program(
    name,
):
    case = CASES[name]
    x = CASES[name].draw(64)
    memory = []
    results = []
    params = drawn(case.make(13), case.draw(), scale=0.2)
    each: list[dict[str, Any]] = [
        {"unroll": 1},
        {"unroll": 2, "remat": True},
        {"unroll": 1, "remat": DOTS},
    ]
    for options in each:
        model = case.make(13, **options)

        def loss(params):
            return jnp.sum(model.apply(params, x, record=lambda y: jnp.sum(jnp.sin(y))))  # noqa: B023

        program = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
        memory.append(program.memory_analysis().temp_size_in_bytes)
        results.append(program(params))
    assert max(memory[1:]) < 0.6 * memory[0]
    for result in results[1:]:
        chex.assert_trees_all_close(result, results[0], rtol=1e-4, atol=1e-5)
    programs = [
        jax.make_jaxpr(case.make(13, unroll=number).apply)(params, x)
        for number in (13, 20)
    ]
    assert len({re.sub("0x[0-9a-f]+", "", str(program)) for program in programs}) == 1
    with pytest.raises(ValueError, match="unroll must be at least 1, got 0"):
        jax.eval_shape(case.make(13, unroll=0).apply, params, x)


@every_model
def test_the_program_does_not_grow_with_depth(name):
    case = CASES[name]
    sizes = []
    for depth in (2, 12):
        model = case.make(depth)
        params = jax.eval_shape(model.init, jax.random.key(0), case.draw())

        def loss(params):
            return jnp.sum(model.apply(params, case.draw()))  # noqa: B023

        sizes.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = "))
    # written-out layers have barriers, a loop has none
    assert sizes[1] <= sizes[0]


KINDS = ("int8", "uint8", "int16", "uint16")
ONE_LAYER = {"num_layers": 1, "vocabulary_size": 300}
READERS = {
    "decoder": Decoder(dataclasses.replace(test_decoder.SMALL, **ONE_LAYER)),
    "encoder": Encoder(
        dataclasses.replace(
            test_encoder.SMALL, padding_token=299, token_types=2, **ONE_LAYER
        )
    ),
    "unrolled classifier": UnrolledClassifier(UnrolledTransformer(4, 1), 300, 2),
}
every_reader = pytest.mark.parametrize("name", READERS)


@functools.cache
def read_by_kind(name):
    """Outputs for two rows of tokens of int32, and of each kind of integer."""
    model = READERS[name]
    option = {"encoder": "token_types", "decoder": "segments"}.get(name)

    @compiled
    def apply(params, tokens):
        def of(kind):
            given = {option: jnp.ones(tokens.shape, kind)} if option else {}
            return model.apply(params, tokens.astype(kind), **given)

        return [of(kind) for kind in ("int32", *KINDS)]

    params = drawn(model, jax.ShapeDtypeStruct((2, 3), jnp.int32))
    return lambda tokens: apply(params, np.array(tokens, np.int32))


@every_reader
def test_tokens_of_every_integer_type_are_the_same_numbers(name):
    """The vocabulary has numbers that small integers cannot hold."""
    expected, *others = read_by_kind(name)([[5, 100, 127], [0, 6, 7]])
    for kind, actual in zip(KINDS, others, strict=True):
        assert_array_equal(actual, expected, err_msg=kind)


@every_reader
def test_a_token_that_the_vocabulary_lacks_is_nan(name):
    outputs = read_by_kind(name)([[5, 6, -1], [5, 6, 300]])[0]
    rows = outputs.reshape(len(outputs), 2, -1)
    assert np.isnan(rows[0]).any(axis=-1).all()
