import shutil

import numpy as np
import pytest
from PIL import Image

from unroll_jax.train.config.data import SceneConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.images import SCENES, load, prepare
from unroll_jax.train.data.pictures import PictureData
from unroll_jax.train.data.road_scenes import LABEL_IDS, split_cities
from unroll_jax.train.data.splits import SPLITS

SIZE = (8, 6)  # width, height
# As printed on the pages of Cityscapes: name, id, train id; of those that train.
CITYSCAPES = """
road 7 0 / sidewalk 8 1 / building 11 2 / wall 12 3 / fence 13 4 / pole 17 5 / traffic light 19 6 / traffic sign 20 7
/ vegetation 21 8 / terrain 22 9 / sky 23 10 / person 24 11 / rider 25 12 / car 26 13 / truck 27 14 / bus 28 15
/ train 31 16 / motorcycle 32 17 / bicycle 33 18
"""


def silent(line: str) -> None:
    del line


@pytest.fixture
def opened(tmp_path):
    def open_root(source, root, log=silent, **options) -> PictureData:
        return load(SceneConfig(source, str(root), str(tmp_path / "prepared"), **options), log=log)

    return open_root


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def camvid(tmp_path):
    """Random scenes in SegNet's layout, every label from 0 to 11 among them."""
    root, generator = tmp_path / "CamVid", np.random.default_rng(0)
    for folder, count in (("train", 4), ("val", 1), ("test", 2)):
        for number in range(count):
            save(root / folder / f"{number:03d}.png", generator.integers(0, 256, (*SIZE[::-1], 3), np.uint8))
            labels = generator.permutation(np.arange(48) % 12).reshape(SIZE[::-1]).astype(np.uint8)
            save(root / f"{folder}annot" / f"{number:03d}.png", labels)
    return root


@pytest.fixture
def cityscapes(tmp_path):
    """Random scenes in the layout of Cityscapes, every label id among them."""
    root, generator = tmp_path / "cityscapes", np.random.default_rng(0)
    for split, city in (("train", "aachen"), ("train", "bochum"), ("train", "zurich"), ("val", "lindau")):
        for number in range(2):
            name = f"{split}/{city}/{city}_{number:06d}_000019"
            pixels = generator.integers(0, 256, (*SIZE[::-1], 3), np.uint8)
            ids = generator.permutation(np.arange(48) % 34).reshape(SIZE[::-1]).astype(np.uint8)
            save(root / "leftImg8bit" / f"{name}_leftImg8bit.png", pixels)
            save(root / "gtFine" / f"{name}_gtFine_labelIds.png", ids)
            save(root / "gtFine" / f"{name}_gtFine_color.png", pixels)
            save(root / "gtFine" / f"{name}_gtFine_instanceIds.png", ids)
    save(root / "leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png", pixels)
    return root


def whole(data, split):
    (batch,) = data.examples(split, batch_size=10_000)
    return batch


def read(paths):
    return np.stack([np.asarray(Image.open(path)) for path in paths])


@pytest.mark.parametrize("packing", [None, ("w", False), ("w:gz", False), ("w:gz", True)])
def test_camvid_is_read_as_it_is_and_unlabelled_does_not_count(opened, camvid, pack, packing):
    root = camvid if packing is None else pack(camvid, packing[0], reverse=packing[1])
    data = opened("camvid", root)
    assert [data.num_examples(split) for split in SPLITS] == [4, 1, 2]
    assert (data.shape, data.num_classes) == ((6, 8, 3), 11)
    for split, folder in zip(SPLITS, ("train", "val", "test"), strict=True):
        batch = whole(data, split)
        np.testing.assert_array_equal(batch.images, read(sorted((camvid / folder).iterdir())))
        stored = read(sorted((camvid / f"{folder}annot").iterdir()))
        np.testing.assert_array_equal(batch.labels, np.where(stored == 11, 255, stored))


def test_the_numbers_of_a_palette_are_labels(opened, camvid):
    file = camvid / "testannot/000.png"
    stored = np.asarray(Image.open(file))
    picture = Image.fromarray(stored)
    picture.putpalette([200 - value for value in range(200)])
    picture.save(file)
    with Image.open(file) as saved:
        assert saved.mode == "P"
    labels = whole(opened("camvid", camvid), "test").labels[0]
    np.testing.assert_array_equal(labels, np.where(stored == 11, 255, stored))


def test_a_reduction_averages_images_and_keeps_labels(opened, camvid):
    data, full = opened("camvid", camvid, reduction=2), whole(opened("camvid", camvid), "train")
    batch = whole(data, "train")
    assert data.shape == (3, 4, 3)
    averages = full.images.reshape(4, 3, 2, 4, 2, 3).mean((2, 4))
    np.testing.assert_allclose(batch.images, averages, atol=0.51)
    np.testing.assert_array_equal(batch.labels, full.labels[:, 1::2, 1::2])


@pytest.mark.parametrize(("reduction", "message"), [(4, "must divide the size of the images, 8x6"), (0, "at least 1")])
def test_a_reduction_that_does_not_fit_is_refused(opened, camvid, reduction, message):
    with pytest.raises(UserError, match=message):
        opened("camvid", camvid, reduction=reduction)


@pytest.mark.parametrize("kind", ["labelIds", "labelTrainIds"])
def test_cityscapes_ids_become_train_ids_and_val_is_the_test(opened, cityscapes, kind):
    table = {0: 255}
    for line in CITYSCAPES.replace("\n", " ").split("/"):
        name, number, train = line.strip().rsplit(" ", 2)
        table[int(number)] = int(train)
        assert list(LABEL_IDS)[int(train)] == name
    files = sorted(cityscapes.glob("gtFine/val/*/*_labelIds.png"))
    expected = np.vectorize(lambda number: table.get(number, 255))(read(files))
    if kind == "labelTrainIds":
        for file in cityscapes.rglob("*_labelIds.png"):
            translated = np.vectorize(lambda number: table.get(number, 255))(np.asarray(Image.open(file)))
            save(file.with_name(file.name.replace("labelIds", kind)), translated.astype(np.uint8))
            file.unlink()
    lines: list[str] = []
    data = opened("cityscapes", cityscapes, lines.append)
    assert [data.num_examples(split) for split in SPLITS] == [4, 2, 2]
    assert "  validation cities: zurich" in lines
    batch = whole(data, "test")
    np.testing.assert_array_equal(batch.labels, expected)
    np.testing.assert_array_equal(batch.images, read(sorted(cityscapes.glob("leftImg8bit/val/*/*.png"))))
    held_out = read(sorted(cityscapes.glob("leftImg8bit/train/zurich/*.png")))
    np.testing.assert_array_equal(whole(data, "validation").images, held_out)


def test_of_all_cities_the_last_two_validate(tmp_path):
    cities = [f"city{number:02d}" for number in range(18)]
    splits = split_cities(cities, root=tmp_path)
    assert splits == {"train": cities[:16], "validation": cities[16:]}


def remove(name):
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def remove_train(root):
    for folder in ("leftImg8bit", "gtFine"):
        shutil.rmtree(root / folder / "train")


def relabel(split, number):
    """Gives every pixel of a split one label."""

    def spoil(root):
        for file in (root / f"{split}annot").iterdir():
            save(file, np.full(SIZE[::-1], number, np.uint8))

    return spoil


def put(name, pixels):
    return lambda root: save(root / name, pixels)


LABELS, COLOURS = np.zeros(SIZE[::-1], np.uint8), np.zeros((*SIZE[::-1], 3), np.uint8)
ODD = LABELS.copy()
ODD[2, 5] = 34
AACHEN = "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png"
BAD = {
    "no train": ("camvid", remove("train"), r"holds no train folder with images; the layout is ROOT/train/NAME.png"),
    "no validation": ("camvid", remove("val"), r"holds no val folder"),
    "no labels": ("camvid", remove("trainannot"), r"'train/000.png' has no counterpart in trainannot"),
    "labels missing": ("camvid", remove("testannot/001.png"), r"'test/001.png' has no counterpart in testannot"),
    "image missing": ("camvid", remove("test/001.png"), r"'testannot/001.png' has no counterpart in test;"),
    "label beyond": (
        "camvid",
        put("valannot/000.png", ODD),
        r"'valannot/000.png' holds the label 34 at row 2, .* 5",
    ),
    "image size": ("camvid", put("test/000.png", COLOURS[1:]), r"'test/000.png' is 8x5, but 'train/000.png' is 8x6"),
    "label size": ("camvid", put("trainannot/002.png", LABELS[:, 1:]), r"'trainannot/002.png' is 7x6, but"),
    "coloured labels": ("camvid", put("trainannot/002.png", COLOURS), r"one number of 8 bits a pixel, .* mode is RGB"),
    "no image": ("camvid", lambda root: (root / "test/000.png").write_text("text"), r"'test/000.png' cannot be read"),
    "one class": ("camvid", relabel("train", 3), r"labels of train have one class alone \(road\); give"),
    "nothing labelled": ("camvid", relabel("test", 11), r"labels of test have no class; give"),
    "two data sets": ("camvid", put("old/train/1.png", COLOURS), r"holds several data sets \(\., old\)"),
    "city without labels": ("cityscapes", remove(AACHEN), r"aachen_000000_.*_leftImg8bit.png' has no labels in gtFine"),
    "no images of val": ("cityscapes", remove("leftImg8bit/val"), r"lindau.*labelIds.png' has no image"),
    "label id beyond": (
        "cityscapes",
        put(AACHEN, ODD),
        r"holds the label 34 at row 2, column 5; .* label ids, 0",
    ),
    "no cities": ("cityscapes", remove_train, r"holds 0 train cities; give at least 2"),
}


@pytest.mark.parametrize(("source", "spoil", "message"), BAD.values(), ids=BAD)
def test_bad_scenes_are_told_in_one_line(opened, request, tmp_path, source, spoil, message):
    root = request.getfixturevalue(source)
    spoil(root)
    with pytest.raises(UserError, match=message) as caught:
        opened(source, root)
    assert "\n" not in str(caught.value)
    assert str(root) in str(caught.value)
    assert not list((tmp_path / "prepared").rglob("*.array_record*")), "an error leaves nothing prepared"


@pytest.mark.parametrize("source", ["camvid", "cityscapes"])
def test_a_truncated_archive_is_an_error(opened, request, pack, source):
    archive = pack(request.getfixturevalue(source), "w:gz")
    archive.write_bytes(archive.read_bytes()[:-50])
    with pytest.raises(UserError, match="nor a whole tar archive"):
        opened(source, archive)


@pytest.mark.parametrize("source", [source for source in SCENES if source != "shapes"])
def test_a_root_must_be_named_and_be_there(opened, tmp_path, source):
    with pytest.raises(UserError, match=f"data.source={source} needs data.root: the folder"):
        prepare(SceneConfig(source))
    with pytest.raises(UserError, match="nowhere does not exist; give the folder or tar archive that holds the images"):
        opened(source, tmp_path / "nowhere")


@pytest.mark.data
def test_camvid_at_half_size_is_read_whole(opened, real_data):
    data = opened("camvid", real_data / "camvid" / "CamVid_240x180.tar")
    assert [data.num_examples(split) for split in SPLITS] == [200, 60, 100]
    assert data.shape == (180, 240, 3)
    counts = np.bincount(whole(data, "train").labels.ravel(), minlength=256)
    assert (counts[:11] > 0).all()
    assert not counts[11:255].any()
    names = np.array(data.class_names)[np.argsort(-counts[:11])]
    assert {"road", "building", "sky"} == set(names[:3])
