"""Images and scenes meant to break what reads them."""

import tarfile

from tests.hostile.command import Command
from tests.hostile.given import bomb, both, cut, files, folders, image, labels, link, named_in_latin_1, pictures, tar

CLASSES = {"d/train/cat": 10, "d/train/dog": 10, "d/test/cat": 2, "d/test/dog": 2}
IMAGES = {f"{name}/{n}.png": image(n, mode="RGB") for name, count in CLASSES.items() for n in range(count)}
GREY = {f"{name}/{n}.png": image(n) for name, count in CLASSES.items() for n in range(count)}
FROM = "prepare image_folder --from d"
TAR = "prepare image_folder --from t.tar"
RUN = "run image-dnn --data.source image_folder --data.root d --out runs/x"
CIFAR = "prepare cifar10 --from d"
BATCH = bytes([3]) + bytes(3072)
SEGNET = {f"d/{split}/{n}.png": image(n, mode="RGB") for split in ("train", "val", "test") for n in range(2)}
LABELS = {f"d/{split}annot/{n}.png": labels(n) for split in ("train", "val", "test") for n in range(2)}
SCENES = "prepare camvid --from d"


def replaced(content: bytes, name: str = "d/train/cat/3.png"):
    """A folder of images, one of which is something else."""
    return files({**IMAGES, name: content})


def segnet(**changed: bytes):
    return files(SEGNET | LABELS | changed)


COMMANDS = [
    Command("prepare image_folder", ("prepare image_folder needs --from",)),
    Command("prepare image_folder --from nowhere", ("--from nowhere does not exist",)),
    Command(FROM, ("--from d holds no .png, .jpg, .jpeg, .tif, .tiff, .bmp files",), folders("d")),
    Command(
        FROM, ("--from d holds no .png, .jpg, .jpeg, .tif, .tiff, .bmp files",), folders("d/train/cat", "d/test/cat")
    ),
    Command(FROM, ("nor a whole tar archive",), files({"d": "text"})),
    Command(FROM, ("train: 18 images",), files(IMAGES), code=0),
    Command(FROM, ("holds no train folder",), pictures({"d/cat": 10, "d/dog": 10})),
    Command(
        FROM, ("test: 2 images",), pictures({"d/training/cat": 10, "d/training/dog": 10, "d/testing/cat": 2}), code=0
    ),
    Command(
        FROM,
        ("'test_set/cat/0.png' looks like test", "ROOT/test/CLASS"),
        pictures({"d/train_set/cat": 10, "d/train_set/dog": 10, "d/test_set/cat": 2}),
    ),
    Command(FROM, ("passing over 2 images outside of the splits",), pictures({**CLASSES, "d/extra/cat": 2}), code=0),
    Command(FROM, ("'train/cat/3.png' cannot be read",), replaced(bomb())),
    Command(FROM, ("validation: 2 images",), pictures({**CLASSES, "d/valid/cat": 2}), code=0),
    Command(FROM, ("'testset/cat/0.png' looks like test",), pictures({**CLASSES, "d/testset/cat": 2})),
    Command(FROM, ("validation: 4 images",), pictures({**CLASSES, "d/Val/cat": 2, "d/Val/dog": 2}), code=0),
    Command(FROM, ("--from d holds images of one class only",), pictures({"d/train/cat": 10, "d/test/cat": 2})),
    Command(FROM, ("a class has a single example",), pictures({"d/train/cat": 10, "d/train/dog": 1, "d/test/cat": 2})),
    Command(
        FROM, ("is of class cow",), pictures({"d/train/cat": 10, "d/train/dog": 10, "d/val/cat": 1, "d/test/cow": 2})
    ),
    Command(
        FROM, ("--from d: image 'test/0.png' is not in the folder of a class",), pictures({"d/train": 10, "d/test": 2})
    ),
    Command(
        FROM,
        ("--from d: image 'test/cat/young/0.png' is not in the folder",),
        pictures({"d/train/cat/young": 10, "d/train/dog/old": 10, "d/test/cat/young": 2}),
    ),
    Command(
        FROM, ("holds several data sets (a, b)",), pictures({"d/a/train/cat": 3, "d/a/train/dog": 3, "d/b/test/cat": 2})
    ),
    Command(
        FROM,
        ("train: 18 images",),
        pictures({"d/train/cat": 10, "d/train/Cat": 10, "d/test/cat": 2, "d/test/Cat": 2}),
        code=0,
    ),
    Command(
        FROM,
        ("'train/c\\nd/0.png' holds control characters",),
        pictures({"d/train/a b": 10, "d/train/c\nd": 10, "d/test/a b": 2}),
    ),
    Command(FROM, ("test: 2 images",), pictures({"d/train/a b": 10, "d/train/\u96ea": 10, "d/test/a b": 2}), code=0),
    Command(
        FROM,
        ("'train/\\udce9t\\udce9/1.png' is not UTF-8",),
        both(pictures(CLASSES), named_in_latin_1("d/train/\xe9t\xe9/1.png", image())),
    ),
    Command(
        FROM,
        ("--from d: all images of train are of one colour",),
        files({name: image(None, mode="RGB") for name in IMAGES}),
    ),
    Command(
        FROM,
        ("all images of test are of one colour",),
        files({name: image(None) if "test" in name else content for name, content in GREY.items()}),
    ),
    Command(
        RUN,
        ("--data.root d: all images of train are of one",),
        files({name: image(None) for name in GREY}),
        gone=("runs",),
    ),
    Command(FROM, ("'train/cat/3.png' cannot be read as an image (not an image",), replaced(b"")),
    Command(FROM, ("image file is truncated",), replaced(image(3, mode="RGB")[:70])),
    Command(FROM, ("'train/cat/3.png' is 9x9, but 'train/cat/0.png' is 8x8",), replaced(image(3, mode="RGB", side=9))),
    Command(FROM, ("more than 8 bits (mode I;16)",), replaced(image(3, mode="I;16"))),
    Command(FROM, ("more than 8 bits (mode I)",), replaced(image(3, mode="I", kind="TIFF"))),
    Command(FROM, ("more than 8 bits (mode F)",), replaced(image(3, mode="F", kind="TIFF"))),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3)), code=0),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3, mode="P")), code=0),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3, mode="RGBA")), code=0),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3, mode="LA")), code=0),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3, mode="CMYK", kind="JPEG")), code=0),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3, mode="YCbCr", kind="JPEG")), code=0),
    Command(FROM, ("train: 18 images of 8 x 8 x 3",), replaced(image(3, mode="1")), code=0),
    Command(FROM, ("not an image of a known kind",), replaced(image(3, kind="GIF"))),
    Command(
        FROM,
        ("'test/cat/0.png' is in colour, but 'train/cat/0.png' is grey",),
        files({**GREY, "d/test/cat/0.png": image(0, mode="RGB")}),
    ),
    Command(FROM, ("'train/cat/x.png' cannot be read",), both(files(IMAGES), link("d/train/cat/x.png", "nowhere"))),
    Command(FROM, ("'d/train/cow' links to a folder above it",), both(files(IMAGES), link("d/train/cow", ".."))),
    Command(FROM, ("train: 18 images",), both(files(IMAGES), folders("d/train/cat/x.png")), code=0),
    Command(FROM + " --validation-share 0", ("--validation-share must be in (0, 1), got 0.0",), files(IMAGES)),
    Command(FROM + " --validation-share nan", ("got nan",), files(IMAGES)),
    Command(FROM + " --validation-share 0.99", ("--validation-share 0.99 cannot be cut",), files(IMAGES)),
    Command(FROM + " --validation-share 0.01", ("--validation-share 0.01 cannot be cut",), files(IMAGES)),
    Command(FROM + " --validation-share half", ("--validation-share", "'half'"), files(IMAGES)),
    Command(
        RUN + " --data.validation-share 2",
        ("--data.validation-share must be in (0, 1), got 2.0",),
        files(IMAGES),
        gone=("runs",),
    ),
    Command(
        RUN + " --batch-size 19", ("at most the 18 examples of the train split, got 19",), files(IMAGES), gone=("runs",)
    ),
    Command(RUN + " --batch-size 1000000", ("at most the 18 examples",), files(IMAGES), gone=("runs",)),
    Command(
        RUN + " --train-examples 19",
        ("--train-examples does not fit the data: train must keep between 1 and 18",),
        files(IMAGES),
        gone=("runs",),
    ),
    Command(RUN + " --train-examples 0", ("got 0",), files(IMAGES), gone=("runs",)),
    Command(
        RUN + " --train-examples 8 --batch-size 9",
        ("at most the 8 examples of the train split, got 9",),
        files(IMAGES),
        gone=("runs",),
    ),
    Command(
        "run image-dnn --data.root d --out runs/x",
        ("--data.source digits takes no --data.root, got 'd'",),
        files(IMAGES),
        gone=("runs",),
    ),
    Command("run image-dnn --batch-size 1198 --out runs/x", ("at most the 1,197 examples",), gone=("runs",)),
    Command("run segment-fcn --data.source image_folder --out runs/x", ("image_folder",), gone=("runs",)),
    Command(TAR, ("train: 18 images",), tar("t.tar", IMAGES), code=0),
    Command(TAR, ("points outside the archive",), tar("t.tar", {"d/../../train/cat/1.png": image()})),
    Command(
        TAR,
        ("'d/train/cat/1.png' is not a plain file",),
        tar("t.tar", {"d/train/cat/1.png": b""}, kind=tarfile.LNKTYPE),
    ),
    Command(TAR, ("it has no end mark",), both(tar("t.tar", IMAGES), cut("t.tar", 0.5))),
    Command(TAR, ("nor a whole tar archive",), both(tar("t.tar", IMAGES, mode="w:xz"), cut("t.tar", 0.9))),
    Command(TAR, ("nor a whole tar archive",), both(tar("t.tar", IMAGES, mode="w:bz2"), cut("t.tar", 0.5))),
    Command("prepare cifar10 --from nowhere", ("--from nowhere does not exist",)),
    Command("prepare cifar10 --from=", ("--from is empty",)),
    Command(CIFAR, ("holds no data_batch_1.bin",), folders("d")),
    Command(CIFAR, ("--from d holds no data_batch_2.bin",), files({"d/data_batch_1.bin": BATCH * 20})),
    Command(
        CIFAR,
        ("data_batch_1.bin has 0 bytes",),
        files({f"d/data_batch_{n}.bin": b"" for n in range(1, 6)} | {"d/test_batch.bin": b""}),
    ),
    Command(
        CIFAR,
        ("--from d holds no data_batch_1.bin",),
        files({"d/data_batch_1": b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."}),
        gone=("owned",),
    ),
    Command(CIFAR, ("--from d: 'data_batch_1.bin' is not a regular file",), folders("d/data_batch_1.bin")),
    Command(CIFAR, ("nor a whole tar archive",), files({"d": b"\x1f\x8b" + bytes(50)})),
    Command(CIFAR, ("--from d holds no data_batch_1.bin",), files({"d/train.bin": bytes(3074)})),
    Command(
        "prepare cifar10 --from t.tar", ("holds no data_batch_2.bin",), tar("t.tar", {"x/data_batch_1.bin": BATCH})
    ),
    Command(
        "prepare cifar10 --from t.tar", ("points outside the archive",), tar("t.tar", {"../data_batch_1.bin": BATCH})
    ),
    Command(
        "prepare cifar10 --from t.tar",
        ("--from t.tar holds no data_batch_1.bin",),
        tar("t.tar", {"data_batch_1": b"pickle"}),
    ),
    Command("prepare digits --from d", ("prepare digits takes no --from, got 'd'",), folders("d")),
    Command("prepare camvid --from nowhere", ("--from nowhere does not exist",)),
    Command(SCENES, ("--from d holds no .png, .jpg, .jpeg, .tif, .tiff, .bmp files",), folders("d")),
    Command(SCENES, ("--from d: 'train/0.png' has no counterpart",), files(SEGNET)),
    Command(SCENES, ("test: 2 images",), files(SEGNET | LABELS), code=0),
    Command(
        SCENES,
        ("--from d: 'trainannot/0.png' has the label 127 at row 0,",),
        segnet(**{"d/trainannot/0.png": image(0)}),
    ),
    Command(SCENES, ("its mode is RGB",), segnet(**{"d/trainannot/0.png": image(0, mode="RGB")})),
    Command(SCENES, ("its mode is I;16",), segnet(**{"d/trainannot/0.png": image(0, mode="I;16")})),
    Command(SCENES, ("its mode is RGBA",), segnet(**{"d/trainannot/0.png": image(0, mode="RGBA")})),
    Command(SCENES, ("holds 'trainannot/0.",), segnet(**{"d/trainannot/0.jpg": image(0, kind="JPEG")})),
    Command(SCENES, ("'train/3.png' has no counterpart",), segnet(**{"d/train/3.png": image(0, mode="RGB")})),
    Command(SCENES, ("'test/1.png' is 9x9",), segnet(**{"d/test/1.png": image(0, mode="RGB", side=9)})),
    Command(SCENES, ("'valannot/1.png' cannot be read",), segnet(**{"d/valannot/1.png": b""})),
    Command(
        SCENES, ("--from d: labels of train have one class only",), segnet(**{name: image(None) for name in LABELS})
    ),
    Command(
        SCENES, ("all images of train are of one colour",), segnet(**{name: image(None, mode="RGB") for name in SEGNET})
    ),
    Command(
        SCENES,
        ("holds several data sets (., x)",),
        files({k.replace("d/", "d/x/"): v for k, v in (SEGNET | LABELS).items()} | SEGNET),
    ),
    Command(
        "run segment-fcn --data.source camvid --data.root d --data.reduction 3 --out r",
        ("--data.reduction 3 must divide the size of the images, 8x8",),
        segnet(),
        gone=("r",),
    ),
    Command(
        "run segment-fcn --data.source camvid --data.root d --data.reduction 0 --out r",
        ("--data.reduction must be a whole number from 1 to",),
        segnet(),
        gone=("r",),
    ),
    Command(
        "run segment-fcn --data.source camvid --data.root d --data.reduction 99 --out r",
        ("--data.reduction 99 must divide",),
        segnet(),
        gone=("r",),
    ),
    Command("prepare shapes --from d", ("prepare shapes takes no --from, got 'd'",), folders("d")),
]
