"""Images and scenes through models that were loaded without their data."""

import functools
import json

import numpy as np
import pytest
from PIL import Image

from tests.supervised.conftest import Fields, Stripes
from tests.supervised.test_runs import small
from unroll_jax.train import load
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit

pytestmark = [pytest.mark.xdist_group("supervised-runs"), pytest.mark.slow]
DATA = {"image-opteq": Stripes(), "segment-fcn": Fields()}


def quiet(line):
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run folders and exports by experiment, of runs of one epoch."""
    root, folders = tmp_path_factory.mktemp("predict"), {}
    for experiment, data in DATA.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("unroll_jax.train.data.images.load", lambda config, *, log, data=data: data)
            patch.setattr("unroll_jax.train.report.write_report", lambda *arguments, **options: None)
            config = small(experiment, epochs=2)
            (run,) = fit(config, out=root / experiment, experiment=experiment, log=quiet)
            folders[experiment] = {"run": run, "export": export(run, log=quiet)}
    return folders


@pytest.fixture(scope="module")
def loaded(trained):
    """The model of a folder, read once."""
    return functools.cache(lambda experiment, which: load(trained[experiment][which], log=quiet))


@pytest.fixture
def model(loaded, monkeypatch):
    """``model(experiment, which)``: loaded where no data can be read."""

    def refuse(*arguments, **options):
        raise AssertionError("data are read")

    monkeypatch.setattr("unroll_jax.train.data.images.load", refuse)
    return lambda experiment, which="export": loaded(experiment, which)


@pytest.mark.parametrize("which", ["run", "export"])
@pytest.mark.parametrize("experiment", DATA)
def test_a_loaded_model_is_right_where_the_evaluation_says_it_is(model, trained, experiment, which):
    evaluation = json.loads((trained[experiment]["run"] / "evaluation.json").read_text())
    pictures, labels = DATA[experiment].splits["test"]
    loaded = model(experiment, which)
    predictions = loaded.predict(list(pictures))
    assert loaded.card["step"] == evaluation["best_step"]
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


@pytest.mark.parametrize("experiment", DATA)
def test_pictures_of_any_size_and_colour_are_brought_to_those_of_training(model, experiment, tmp_path):
    loaded, picture = model(experiment), Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8))
    height, width, channels = DATA[experiment].shape
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
