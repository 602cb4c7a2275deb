"""Images and scenes through models that were loaded without their data."""

import numpy as np
import pytest
from PIL import Image

from tests.supervised.conftest import DATA, small
from tests.tasks import without_data
from tests.train.commands import quiet, read
from unroll_jax.train import load
from unroll_jax.train.data.pictures import NOT_COUNTED

pytestmark = [pytest.mark.xdist_group("supervised-runs"), pytest.mark.slow]
BOTH = ("image-opteq", "segment-fcn")


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("experiment", BOTH)
def test_a_loaded_model_is_right_where_the_evaluation_says_it_is(trained, experiment, tmp_path):
    run, _ = trained(experiment)
    evaluation, (pictures, labels) = read(run / "evaluation.json"), data_of(experiment).splits["test"]
    with without_data(run, tmp_path / "model", "unroll_jax.train.data.images.load") as models:
        each = [model.predict(list(pictures)) for model in models]
    for predictions in each:
        if experiment.startswith("image"):
            shares = np.stack([one.probabilities for one in predictions])
            np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
            assert -np.log(shares[np.arange(len(labels)), labels]).mean() == pytest.approx(evaluation["loss"], rel=1e-4)
            predicted = np.array([evaluation["class_names"].index(one.label) for one in predictions])
        else:
            predicted = np.stack(predictions)
            assert (predicted.shape, predicted.dtype) == (labels.shape, np.uint8)
        confusion = np.zeros((2, 2), int)
        np.add.at(confusion, (labels[labels != NOT_COUNTED], predicted[labels != NOT_COUNTED]), 1)
        assert confusion.tolist() == evaluation["confusion"]


def data_of(experiment):
    return DATA[type(small(experiment).data)]


@pytest.mark.parametrize("experiment", BOTH)
def test_pictures_of_any_size_and_colour_are_brought_to_those_of_training(trained, experiment, tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8))
    loaded, (height, width, channels) = load(trained(experiment)[0], log=quiet), data_of(experiment).shape
    mode = "L" if channels == 1 else "RGB"
    files = [tmp_path / f"{mode}.png" for mode in ("L", "RGB", "RGBA", "P")]
    for file in files:
        picture.convert(file.stem).save(file)
    assert isinstance(loaded.predict(files), list)
    for file in files:
        with Image.open(file) as opened:
            standard = opened.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
        expected = loaded.predict(np.asarray(standard))
        alone, inside = loaded.predict(str(file)), loaded.predict([file])[0]
        for prediction in (alone, inside):
            np.testing.assert_allclose(np.asarray(prediction[-1]), np.asarray(expected[-1]), rtol=1e-5)
    grey = np.asarray(picture.convert("L"))
    assert str(loaded.predict(grey)) == str(loaded.predict(grey[..., None]))
