"""Sparse coding experiments by name."""

from ..config.constraints import ConstraintConfig, DualConfig
from ..config.data import CodeConfig
from ..config.run import Experiment, PrimalConfig
from ..config.sparse_coding import ListaConfig, SparseCodingConfig

PAPER = "Hadou, NaderiAlizadeh, Ribeiro, Robust stochastically-descending unrolled networks, sparse coding"

# As in the authors' code as far as it tells: 10 layers, batches of 512, Adam at 1e-5, multipliers once an epoch, and
# |z_l - z*| <= 0.95 |z_(l-1) - z*| in the mean of the samples' ratios, on squares 0.95^2. Otherwise:
# - 7,000 steps are 90 of its 5,000 epochs.
# - Its dictionary is uniform in [0, 1], its sparsity 0.5, and its codes are 3,000 steps of ISTA too short to arrive.
#   Here atoms are Gaussian, and codes are the Lasso's solutions, which at 0.5 ISTA comes close to in 10 steps.
# - Its noise on layers follows the logarithm of a gradient's norm; here it has one strength.
# - Its plain training has a tenth of the learning rate; here methods share the rate and the noise.
CIFAR10 = SparseCodingConfig(
    method="both",
    steps=7000,
    batch_size=512,
    layer_noise=0.01,
    test_layer_noises=(0.01, 0.02, 0.05, 0.1),
    validate_every=700,
    data=CodeConfig(source="cifar10", dictionary="random", atoms=1228, sparsity=0.1, validation_share=0.2),
    model=ListaConfig(weights="noise", start=0.01),
    primal=PrimalConfig(learning_rate=1e-5, warmup_share=0.0, schedule="constant", clip_norm=None),
    dual=DualConfig(optimizer="sgd", learning_rate=1e-3, every="epoch"),
    constraints=ConstraintConfig(alpha=(1.0 - 0.95**2,), form="ratio", margin=0.0, first_margin=0.0, normalise=False),
)

DEMO = Experiment(
    config=SparseCodingConfig(method="all", model=ListaConfig(weights="noise"), out="runs/demo"),
    summary="10-layer LISTA on scikit-learn's digits: plain, deep supervision and constrained, compared",
    paper=PAPER,
    expect="relative error 0.06 constrained and 0.10 plain; one layer lost: 0.07 and 0.48; 2.5 minutes on 2 cores",
)

SPARSE_CODING: dict[str, Experiment] = {
    "sparse-coding": Experiment(
        config=SparseCodingConfig(model=ListaConfig(weights="noise")),
        summary="10-layer LISTA on scikit-learn's digits or your images, one method (or several)",
        paper=PAPER,
        expect="relative error 0.065 constrained, 0.095 plain, of a linear map 0.36; one layer lost: 0.07 against 0.48 "
        "(5 seeds); a minute on one core. With --model.weights ista plain layers descend too",
    ),
    "hadou2023-cifar10": Experiment(
        config=CIFAR10,
        summary="10-layer LISTA on CIFAR-10 in grey with noise on layers, plain and constrained, at one learning rate",
        paper=PAPER,
        expect="not yet run here in full; needs a GPU",
        has_run=False,
    ),
}
