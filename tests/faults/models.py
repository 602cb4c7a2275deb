"""Faults of models."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: list[Fault] = [
    Fault(
        "the first token is read though it is padding",
        "unroll_jax/models/classifier.py",
        "place = jnp.argmax(mask, axis=-1)",
        "place = jnp.zeros(mask.shape[:-1], int)",
        "tests/models/test_classifier.py tests/models/test_unrolled_classifier.py",
    ),
    Fault(
        "features have a bias whatever they are told",
        "unroll_jax/models/deep_opteq.py",
        "                use_bias=self.use_bias,\n",
        "",
        "tests/models/test_deep_opteq.py",
    ),
    Fault(
        "padding is token 0 whatever the configuration says",
        "unroll_jax/models/encoder.py",
        "return tokens != config.padding_token if mask is None else mask",
        "return tokens != 0 if mask is None else mask",
        "tests/models/test_encoder.py",
    ),
    Fault(
        "records see the layers' low precision",
        "unroll_jax/models/encoder.py",
        "else record(y.astype(output))",
        "else record(y)",
        "tests/models/test_encoder.py",
    ),
    Fault(
        "attention sees padding",
        "unroll_jax/models/encoder_parts.py",
        "jnp.where(mask, scores * (1.0 / math.sqrt(queries.shape[-1])), jnp.finfo(wide).min)",
        "scores * (1.0 / math.sqrt(queries.shape[-1]))",
        "tests/models/test_encoder.py",
    ),
    Fault(
        "positions count padding",
        "unroll_jax/models/encoder_parts.py",
        "return jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0)",
        "return jnp.cumsum(jnp.ones_like(mask), axis=-1) - 1",
        "tests/models/test_encoder.py tests/models/test_unrolled_classifier.py",
    ),
    Fault(
        "padding is perturbed",
        "unroll_jax/models/encoder_parts.py",
        "jnp.where(mask[..., None], perturbation, 0.0).astype(words.dtype)",
        "perturbation.astype(words.dtype)",
        "tests/models/test_encoder.py",
    ),
    Fault(
        "layers of the plain network have a bias whatever they are told",
        "unroll_jax/models/feedforward_network.py",
        "                use_bias=self.use_bias,\n",
        "",
        "tests/models/test_baselines.py",
    ),
    Fault(
        "the cosine transform is not scaled",
        "unroll_jax/models/initializers.py",
        "scale * cosine_dictionary(rows, columns)",
        "cosine_dictionary(rows, columns)",
        "tests/models/test_initializers.py",
    ),
    Fault(
        "images are not padded, so that they wrap around",
        "unroll_jax/models/monotone_network.py",
        "reach = self.kernel_size // 2",
        "reach = 0",
        "tests/models/test_monotone_network.py",
    ),
    Fault(
        "the splitting is not told the margin",
        "unroll_jax/models/monotone_network.py",
        "            margin=self.margin,\n            activation",
        "            activation",
        "tests/models/test_monotone_network.py",
    ),
    Fault(
        "the vector field does not see the time",
        "unroll_jax/models/neural_ode.py",
        "jnp.broadcast_to(jnp.asarray(t, h.dtype), (*h.shape[:-1], 1))",
        "jnp.zeros((*h.shape[:-1], 1), h.dtype)",
        "tests/models/test_baselines.py",
    ),
    Fault(
        "height and width of images change places in the bound of a norm",
        "unroll_jax/models/opteq_base.py",
        "image = (x.shape[-3], x.shape[-2]) if convolutional",
        "image = (x.shape[-2], x.shape[-3]) if convolutional",
        "tests/models/test_deep_opteq.py",
    ),
    Fault(
        "a regulariser of the batch leaves examples apart",
        "unroll_jax/models/opteq_base.py",
        'if regulariser.couples_examples and self.way == "implicit":',
        'if regulariser.couples_examples and self.way == "unrolled":',
        "tests/models/test_deep_opteq_ways.py",
    ),
    Fault(
        "windows of the head overlap",
        "unroll_jax/models/parts.py",
        "strides=(self.pool,) * 2)",
        "strides=(1, 1))",
        "tests/models/test_deep_opteq.py tests/models/test_monotone_network.py",
    ),
    Fault(
        "logits of pixels are those of the nearest",
        "unroll_jax/models/parts.py",
        'self.num_classes), "bilinear")',
        'self.num_classes), "nearest")',
        "tests/models/test_segmenters.py",
    ),
    Fault(
        "a segmenter's stem computes in float32 whatever its dtype",
        "unroll_jax/models/segmenters.py",
        'Stem(self.stem, dtype=self.dtype, name="stem", **options)(x)',
        'Stem(self.stem, name="stem", **options)(x)',
        "tests/models/test_segmenters.py",
    ),
    Fault(
        "frozen embeddings keep the gradient from the perturbation",
        "unroll_jax/models/unrolled_classifier.py",
        "        if self.frozen:\n            total = jax.lax.stop_gradient(total)\n"
        "        total = perturbed(total, mask, perturbation)\n",
        "        total = perturbed(total, mask, perturbation)\n"
        "        if self.frozen:\n            total = jax.lax.stop_gradient(total)\n",
        "tests/models/test_unrolled_classifier.py",
    ),
    Fault(
        "numbers that stand in padding are looked up",
        "unroll_jax/models/unrolled_classifier.py",
        "total = words(jnp.where(mask, tokens, 0))",
        "total = words(tokens)",
        "tests/models/test_unrolled_classifier.py",
    ),
    Fault(
        "layers of the unrolled transformer do not see the mask",
        "unroll_jax/models/unrolled_transformer.py",
        "leaf.astype(compute), layer), y, mask)",
        "leaf.astype(compute), layer), y, None)",
        "tests/models/test_unrolled_transformer.py",
    ),
    Fault(
        "layers of the unrolled transformer compute in float32 whatever the input",
        "unroll_jax/models/unrolled_transformer.py",
        "compute = x.dtype if self.dtype is None else self.dtype",
        "compute = self.param_dtype if self.dtype is None else self.dtype",
        "tests/models/test_unrolled_transformer.py",
    ),
]
