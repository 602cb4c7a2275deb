"""Certified classification: radii, attacks, predictions, and networks without bounds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special

from tests.errors import one_line
from tests.reference import compiled
from tests.supervised.conftest import Stripes, give
from tests.tasks import without_data
from tests.train.commands import quiet, read
from unroll_jax.train.config.options import with_value
from unroll_jax.train.config.run import OptimizerConfig
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.certified.options import CertifiedConfig, CertifiedNetwork
from unroll_jax.train.tasks.certified.task import fitted, make
from unroll_jax.train.tasks.images.options import ImageConfig

pytestmark = pytest.mark.xdist_group("images")
RADII = (0.05, 0.2, 0.4)
SMALL = CertifiedConfig(
    epochs=20,
    validate_every=20,
    batch_size=16,
    radii=RADII,
    attacks=RADII,
    attack_steps=10,
    offset=0.3,
    data=ImageConfig(),
    network=CertifiedNetwork(num_layers=2, width=16),
    optimizer=OptimizerConfig(learning_rate=1e-2),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Both runs on the same images."""
    folders = {}
    with pytest.MonkeyPatch.context() as patch:
        give(patch)
        for kind in ("steps", "plain"):
            options = with_value(SMALL, "network.kind", kind)
            out = tmp_path_factory.mktemp("certified") / kind
            (folders[kind],) = fit(options, out=out, experiment=kind, log=quiet)
    return folders


def test_no_attack_beats_a_certificate(trained):
    """Networks without bounds have none."""
    evaluation = read(trained["steps"] / "evaluation.json")
    certified, attacked = (
        np.array([*evaluation[name].values()])
        for name in ("certified_accuracy", "attack_accuracy")
    )
    assert evaluation["clean_accuracy"] > 0.6
    assert certified[0] > 0.5
    assert np.all(np.diff(certified) <= 0.0)
    assert np.all(certified <= attacked)
    # the curve of the report has the shares of the table
    curve = np.array(evaluation["certified_curve"])
    shares = [np.max(curve[curve[:, 0] > r, 1], initial=0.0) for r in RADII]
    assert_allclose(shares, certified)
    smallest = [*evaluation["smallest_radii"].values()]
    assert smallest[0] > 0.0
    assert smallest == sorted(smallest)
    plain = read(trained["plain"] / "evaluation.json")
    assert plain["certified_accuracy"]["0.4"] <= plain["attack_accuracy"]["0.4"]


def test_a_prediction_has_a_radius_within_which_its_label_stays(
    trained, stripes, tmp_path
):
    pictures = list(stripes.splits["test"].images[:4])
    with without_data(
        trained["steps"], tmp_path / "model", "unroll_jax.train.tasks.images.data.load"
    ) as (model, exported):
        answers = model.predict(pictures)
        for one, other in zip(answers, exported.predict(pictures), strict=True):
            assert (one.label, one.radius) == (other.label, other.radius)
    assert all(answer.radius >= 0.0 for answer in answers)
    logits = compiled(model.task.inner.logits)
    draw = np.random.default_rng(0)
    for picture, answer in zip(pictures, answers, strict=True):
        moves = draw.normal(size=(64, *picture.shape))
        lengths = np.linalg.norm(moves.reshape(64, -1), axis=1)
        moves *= (0.999 * answer.radius / lengths)[:, None, None, None]
        moves[0] = 0.0
        found = logits(model.params, np.float32(picture / 255.0 + moves))
        named = {model.task.inner.spec.class_names[one] for one in found.argmax(-1)}
        assert named == {answer.label}
        shares = special.softmax(found[0] / SMALL.temperature)
        assert_allclose(answer.probabilities, shares, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "network"),
    [
        ((8, 8, 1), CertifiedNetwork()),
        ((12, 10, 3), CertifiedNetwork(width=360)),
        ((32, 32, 3), CertifiedNetwork(convolutional=True, block=4, width=64)),
        ((50, 34, 3), CertifiedNetwork(convolutional=True, block=2, width=64)),
    ],
)
def test_the_default_network_fits_the_images_and_another_one_stays(shape, network):
    assert fitted(CertifiedConfig(), shape).network == network
    given = CertifiedConfig(network=CertifiedNetwork(num_layers=3))
    assert fitted(given, shape) == given


def test_networks_that_do_not_fit_are_one_line():
    with one_line("network.width must be at least the 16 numbers"):
        make(with_value(SMALL, "network.width", 15), Stripes())
    with one_line("network.block must be 1 without"):
        with_value(SMALL, "network.block", 2).check()


@pytest.mark.nightly
@pytest.mark.usefixtures("in_memory")
def test_convolutional_steps_are_certified_too(tmp_path):
    network = CertifiedNetwork(num_layers=2, width=8, convolutional=True, block=2)
    options = with_value(SMALL, "network", network)
    (folder,) = fit(options, out=tmp_path / "run", experiment="conv", log=quiet)
    evaluation = read(folder / "evaluation.json")
    for radius in map(str, RADII):
        certified = evaluation["certified_accuracy"][radius]
        assert certified <= evaluation["attack_accuracy"][radius]
    assert evaluation["certified"] > 0.5
