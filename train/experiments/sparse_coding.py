"""Sparse coding experiments by name: what they show, and their configurations."""

from ..config.constraints import ConstraintConfig, DualConfig
from ..config.data import CodeConfig
from ..config.run import Experiment, PrimalConfig
from ..config.sparse_coding import ListaConfig, SparseCodingConfig

PAPER = "Hadou, NaderiAlizadeh, Ribeiro, Robust stochastically-descending unrolled networks, sparse coding"

# As in the authors' code, where it says: 5,000 epochs of 78 batches, of which here 100. Their constraint is
# |z_l - z*| <= 0.95 |z_(l-1) - z*| in the mean of the samples' ratios, on squares 0.95^2. Their dictionary has entries
# uniform in [0, 1], and codes of 3,000 steps of ISTA too short to reach the Lasso's solution; here atoms are Gaussian
# and codes are solutions. Plain training there has a tenth of this learning rate, and noise on layers is but an option
# of either; here both methods share both.
CIFAR10 = SparseCodingConfig(
    method="both",
    steps=7000,
    batch_size=512,
    layer_noise=0.01,
    test_layer_noises=(0.01, 0.02, 0.05, 0.1),
    validate_every=700,
    data=CodeConfig(source="cifar10", dictionary="random", atoms=1228, sparsity=0.5, validation_share=0.2),
    model=ListaConfig(weights="noise", start=0.01),
    primal=PrimalConfig(learning_rate=1e-5, warmup_share=0.0, schedule="constant", clip_norm=None),
    dual=DualConfig(optimizer="sgd", learning_rate=1e-3, every="epoch"),
    constraints=ConstraintConfig(alpha=(1.0 - 0.95**2,), form="ratio", margin=0.0, first_margin=0.0, normalise=False),
)

SPARSE_CODING: dict[str, Experiment] = {
    "sparse-coding": Experiment(
        config=SparseCodingConfig(method="both", model=ListaConfig(weights="noise"), out="runs/sparse-coding"),
        summary="10-layer LISTA on scikit-learn's digits, plain and constrained, compared",
        paper=PAPER,
        expect="to be measured",
    ),
    "hadou2023-cifar10": Experiment(
        config=CIFAR10,
        summary="10-layer LISTA on CIFAR-10 in grey with noise on layers, plain and constrained, at one learning rate",
        paper=PAPER,
        expect="not yet run here; needs a GPU; downloads without --data.root",
    ),
}
