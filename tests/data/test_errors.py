"""Originals with something wrong inside: one line names the root, the file or the
option, and nothing is prepared."""

import io
import itertools
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import truncate, write, write_video
from tests.data.test_cityscapes import FILES as CITIES
from tests.data.test_cityscapes import map_file
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.tasks.images import data as images
from unroll_jax.train.tasks.language.instructions import read_prompts


def picture(seed=0, shape=(5, 6, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def pictures(counts, shape=(5, 6, 3)):
    paths = [
        f"{folder}/{number:03d}.png"
        for folder, count in counts.items()
        for number in range(1, count + 1)
    ]
    return {path: picture(seed, shape) for seed, path in enumerate(paths)}


def without(files, *gone):
    return {
        name: content for name, content in files.items() if not name.startswith(gone)
    }


def video(count):
    return lambda path: write_video(path, count)


def link(place):
    return lambda path: path.symlink_to(place)


def folder(path):
    path.mkdir()


def cut_short(path):
    Image.fromarray(picture(0, (160, 160))).save(path)
    truncate(path)


def two_pages(path):
    page = Image.new("L", (160, 160))
    page.save(path, save_all=True, append_images=[page])


def two_sizes(path):
    content = b""
    for side in (160, 80):
        part = path.with_suffix(".ts")
        write_video(part, 25, codec="mpeg2video", side=side)
        content += part.read_bytes()
        part.unlink()
    path.write_bytes(content)


def tar(name="clip/002.png", kind=tarfile.REGTYPE, end=None):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for each in ("clip/001.png", name):
            last = tarfile.TarInfo(each)
            last.type, start = kind, archive.offset
            archive.addfile(last, io.BytesIO())
    return packed.getvalue()[: None if end is None else start + end]


def damaged_zip():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in SST2.items():
            archive.writestr(f"SST-2/{name}", content)
    return packed.getvalue().replace(b"dull", b"full")


CLIPS = pictures(
    {
        "Train/Train001": 20,
        "Train/Train002": 25,
        "Train/Train010": 20,
        "Test/Test001": 20,
    },
    (16, 16),
)
VIDEOS = {f"{name}.avi": video(20) for name in "abc"}
IMAGES = pictures({"train/cat": 10, "train/dog": 10, "test/cat": 2, "test/dog": 2})
SCENES = pictures({"train": 4, "val": 1, "test": 2}, (6, 8, 3))
LABELS = np.arange(48, dtype=np.uint8).reshape(6, 8) % 12
SCENES |= {name.replace("/", "annot/"): LABELS for name in SCENES}
# of a file of CIFAR-10
RECORDS = np.column_stack([np.arange(20, dtype=np.uint8) % 10, picture(0, (20, 3072))])
CIFAR = dict.fromkeys(images.FILES, RECORDS.tobytes())
CATS = np.column_stack([np.full(20, 3, np.uint8), RECORDS[:, 1:]]).tobytes()
HEADER = "text\tlabel\n"
GOOD = HEADER + "".join(f"text {number}\t{'ab'[number % 2]}\n" for number in range(40))
SST2 = {
    f"{name}.tsv": "sentence\tlabel\nfine\t1\ndull\t0\n"
    for name in ("train", "dev", "test")
}
PAIR = (
    '{"sentence1": "It rains.", "sentence2": "It is wet.", "gold_label": "neutral"}\n'
)
ANSWERS = '[{"prompt": "a", "answer": "b"}]'
TRAIN, DEV = "multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl"
MNLI = {TRAIN: PAIR, DEV: PAIR}
REVIEWS = {
    f"aclImdb/{split}/{stars}.txt": "words"
    for split, stars in itertools.product(("train", "test"), ("neg/0_3", "pos/0_9"))
}
ODD = np.where(np.arange(48).reshape(6, 8) == 21, np.uint8(34), LABELS)
ONE_CITY = [
    f"{part}/train/{city}"
    for part, city in itertools.product(("gtFine", "leftImg8bit"), ("zurich", "bochum"))
]
# The source, its files, and words of the error. One file is the root itself.
BAD = [
    (
        "video",
        without(CLIPS, "Train/Train001/020"),
        "'Train/Train001' has fewer than 20 frames",
    ),
    ("video", CLIPS | {"Test/Test001/003.png": cut_short}, "'Test/Test001/003.png'"),
    ("video", CLIPS | {"Train/Train002/026.png": link("gone")}, "No such file"),
    ("video", CLIPS | {"Train/Train001/003.tif": two_pages}, "holds 2 pictures"),
    (
        "video",
        CLIPS | {"Train/Train001/020.png": picture(0, (60, 80))},
        "Train001/020.png' cannot be read",
    ),
    ("video", VIDEOS | {"d.avi": two_sizes}, "is not of the size (160, 160)"),
    (
        "video",
        {"train/a.heic": "x", "b": "x"},
        "no pictures or videos that can be read, but 2 file(s)",
    ),
    ("video", {"t.tar": tar("../clip/001.png")}, "outside the destination"),
    (
        "video",
        {"t.tar": tar(kind=tarfile.FIFOTYPE)},
        "'clip/001.png' is a special file",
    ),
    ("video", {"t.tar": tar(end=100)}, "nor a whole tar or zip archive"),
    (
        "video",
        {"a.avi": "#EXTM3U\n#EXTINF:1,\nb.avi\n"},
        "a.avi cannot be read as a video",
    ),
    ("video", pictures({"a": 20, "b": 20}), "holds 2 clip(s); give at least 3"),
    ("video", pictures({"Test/Test001_gt": 20}), "no clips but masks"),
    (
        "video",
        pictures({"train/val/a": 20, "train/b": 20, "test/c": 20}),
        "train and validation",
    ),
    (
        "video",
        VIDEOS | {"cover.png": picture()},
        "folders of frames or videos, as 'cover.png'; give each a folder",
    ),
    (
        "cifar10",
        CIFAR | {"data_batch_2.bin": CATS[:-100]},
        "data_batch_2.bin is not of 20 records of 3073 bytes",
    ),
    (
        "cifar10",
        CIFAR | {"data_batch_3.bin": b"\x0a" + CATS[1:]},
        "data_batch_3.bin is not of 20 records",
    ),
    (
        "cifar10",
        {"train.bin": bytes(3074), "test.bin": b""},
        "holds no data_batch_1.bin; give cifar-10-binary",
    ),
    ("image_folder", without(IMAGES, "train"), "holds no train folder with images"),
    (
        "image_folder",
        without(IMAGES, "train/dog"),
        "'test/dog/001.png' is of class dog, which train lacks",
    ),
    (
        "image_folder",
        IMAGES | {"train/1.png": picture()},
        "'train/1.png' is not in the folder of a class",
    ),
    (
        "image_folder",
        IMAGES | {"test/cat/a.png": np.uint16(picture()[..., 0])},
        "'test/cat/a.png' ... 8 bits",
    ),
    (
        "image_folder",
        IMAGES | {"old/train/cat/1.png": picture()},
        "several data sets (., old)",
    ),
    (
        "image_folder",
        IMAGES | {"train/cow/x/1.heic": "x"},
        "'train/cow' has no file that can be read",
    ),
    (
        "image_folder",
        IMAGES | pictures({"training/cat": 1}),
        "holds train and training; keep one of them",
    ),
    (
        "image_folder",
        IMAGES | pictures({"my_val/cat": 1}),
        "'my_val/cat' looks like a split that is not read",
    ),
    ("camvid", without(SCENES, "trainannot"), "'train/001.png' has no counterpart"),
    (
        "camvid",
        without(SCENES, "trainannot/001.png") | {"trainannot/009.png": LABELS},
        "has no counterpart",
    ),
    ("camvid", SCENES | {"valannot/001.png": ODD}, "'valannot/001.png' ... label 34"),
    (
        "camvid",
        SCENES | {"trainannot/002.png": picture(0, (6, 8, 3))},
        "'trainannot/002.png' ... RGB",
    ),
    (
        "cityscapes",
        without(CITIES, map_file("val/munster/munster_000000_000019")),
        "munster_000000_000019_leftImg8bit.png' has no counterpart",
    ),
    (
        "cityscapes",
        CITIES | {map_file("train/aachen/aachen_000000_000019"): LABELS + np.uint8(40)},
        "label id 51",
    ),
    ("cityscapes", without(CITIES, *ONE_CITY), "two cities of train"),
    (
        "cityscapes",
        without(CITIES, "gtFine/val", "leftImg8bit/val"),
        "no scenes of val",
    ),
    (
        "table",
        {"t.tsv": f"{HEADER}a\tx\n\n\t\nb\ty\n"},
        "t.tsv line 4: 'label' must be the name",
    ),
    (
        "table",
        {"t.jsonl": '{"text": "\\ud83d", "label": 1}'},
        "line 1 is not valid JSON ('utf-8' codec",
    ),
    (
        "table",
        {"t.tsv": "a\tb\nc\td\n"},
        "its columns are a, b ... name yours by data.text_column and ",
    ),
    (
        "table",
        {"t.csv": "text,label\na,x\nb\0,y\n"},
        "line 3 is not UTF-8 text (it has a zero byte)",
    ),
    (
        "table",
        {"t.csv": b"text,label\na,x\ncr\xe8me,x\n"},
        "t.csv line 3 is not UTF-8 text ... byte 0xe8",
    ),
    (
        "table",
        {"t.csv": 'text,label\n"a\nb",c\n"",d\n'},
        "t.csv line 4 has an empty text",
    ),
    (
        "table",
        {"t.tsv": HEADER + "a\tx\nb\tx\n" * 15},
        "train has texts of one class only",
    ),
    (
        "table",
        {"t.tsv": f"{GOOD}c\n"},
        "t.tsv line 42 cannot be read (it has not one value for each of",
    ),
    (
        "table",
        {"t.csv": ""},
        "the train file has no labelled texts",
    ),
    (
        "table",
        {"t.tsv": GOOD.replace("\n", "\r")},
        "t.tsv line 1 cannot be read ... line ends of today",
    ),
    ("table", {"t.xlsx": "PK"}, "t.xlsx: holds no train file"),
    (
        "table",
        {"train.tsv": GOOD, "validation.parquet": "PAR1"},
        "'validation.parquet' looks like ... rename it if it is none",
    ),
    ("table", {"train.tsv": GOOD, "test.tsv.gz": ""}, "'test.tsv.gz' looks like"),
    ("table", {"train.tsv": GOOD, "validate.tsv": GOOD}, "'validate.tsv' looks like"),
    (
        "table",
        {"train.tsv": GOOD, "train.csv": ""},
        "holds train.csv and train.tsv; keep one",
    ),
    (
        "table",
        {"train.tsv": GOOD, "test.tsv": f"{HEADER}fog\tc\n"},
        "test.tsv line 2 has label 'c'",
    ),
    ("sst2", {"SST-2.zip": damaged_zip()}, "archive (Bad CRC-32"),
    (
        "mnli",
        MNLI | {TRAIN: PAIR.replace("neutral", "maybe")},
        "line 1 has gold_label 'maybe'",
    ),
    (
        "imdb",
        {"a/b.txt": "", "c.txt": ""},
        "give the folder aclImdb",
    ),
    ("alpaca", {"a.json": "{}"}, "is not a list; give a list of objects"),
    (
        "alpaca",
        {"a.json": '[{"instruction": "a"}]'},
        "entry 1 must be an object with a text 'output', got None",
    ),
    (
        "alpaca",
        {"a.jsonl": '{"instruction": "a", "output": ""}'},
        "has no answered instruction in train",
    ),
    ("alpaca", {"train.json": ANSWERS, "test/1.json": ANSWERS}, "'test' looks like"),
    (
        "alpaca",
        {"a.jsonl": '{"prompt": "a", "prompt": "b", "answer": "c"}\n'},
        "prompt is there more than once",
    ),
    ("prompts", {"p.json": "[" * 100_000}, "is not valid JSON"),
    ("prompts", {"p.txt": " \n\n"}, "has no prompt"),
]
OTHERS = {"prompts": lambda path: read_prompts(path, answers=True)}


@pytest.mark.parametrize(("source", "files", "words"), BAD)
def test_bad_originals_give_one_line_and_nothing_is_prepared(
    opened, monkeypatch, tmp_path, source, files, words
):
    monkeypatch.setattr(images, "RECORDS", len(RECORDS))
    root, prepared = tmp_path / "files", tmp_path / "prepared"
    write(root, files)
    root = root / next(iter(files)) if len(files) == 1 else root
    with pytest.raises(UserError) as caught:
        OTHERS[source](root) if source in OTHERS else opened(
            source, root, prepared=str(prepared)
        )
    message = str(caught.value)
    assert all(part in message for part in words.split(" ... "))
    assert str(root) in message or "data.validation_share" in message
    assert "\n" not in message
    assert not list(prepared.rglob("*.array_record*"))
