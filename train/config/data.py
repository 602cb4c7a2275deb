"""Data that a run trains and is tested on, and the folder for prepared data."""

from typing import Annotated, Literal, get_args, get_type_hints

from pydantic import Field

from .options import Depth, Fraction, Positive, Text, Width, options

VideoSource = Literal["photos", "video"]
ImageSource = Literal["digits", "cifar10", "image_folder"]
SetSource = Literal["digits", "class_folders"]
SceneSource = Literal["shapes", "camvid", "cityscapes"]
TextSource = Literal["verdicts", "imdb", "sst2", "mnli", "table"]
InstructionSource = Literal["chores", "alpaca"]


@options
class SourceConfig:
    """Data to train and test on, and the folder for prepared data."""

    source: Text
    """Name of the data."""
    root: Text | None = None
    """Path of the original files; data that the program makes need none."""
    prepared: Text | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""


@options
class DataConfig(SourceConfig):
    """Video to train and test on, and the folder for prepared data."""

    source: VideoSource = "photos"
    """photos: clips filmed over two photographs, no files needed. video: a folder tree
    or archive, in folders of splits as published (UCSD, Avenue, ShanghaiTech) or a
    folder of frames or a video a clip; or one video file.
    """


@options
class ImageConfig(SourceConfig):
    """Images to classify, and the folder for prepared data."""

    source: ImageSource = "digits"
    """digits: 8x8 grey digits, no files needed. cifar10: the binary version, as archive
    or folder. image_folder: a folder or archive with train/CLASS/NAME.png and
    test/CLASS/NAME.png (or jpg).
    """
    validation_share: Fraction = 0.1
    """Share of train images held out for validation, stratified; digits and a folder
    with that split keep theirs."""


@options
class CodeConfig(ImageConfig):
    """Images to code, in grey, the dictionary to code them in, and the folder for
    prepared images and codes."""

    dictionary: Literal["learned", "random"] = "learned"
    """learned: from the train images, by scikit-learn, which takes long for large
    images. random: Gaussian atoms of unit length, the same ones every time.
    """
    atoms: Width | None = None
    """Atoms of the dictionary, and so the width of a code; None: 1.2 times the
    pixels of an image."""
    sparsity: Positive = 0.1
    """lambda of the Lasso that codes solve, 1/2 |x - D'z|^2 + lambda |z|_1, pixels
    in [0, 1]."""


@options
class SetConfig(SourceConfig):
    """Grey images, the sets that are drawn from them, and the folder for prepared
    images."""

    source: SetSource = "digits"
    """digits: scikit-learn's 8x8 digits, no files needed. class_folders: your
    images; --data.root implies it."""
    root: Text | None = None
    """Folder or archive of your images, with a folder for each of two or more
    classes: ROOT/CLASS/NAME.png (or jpg)."""
    size: Annotated[int, Field(ge=4, le=64)] = 8
    """Images are resized to size x size pixels; a token has as many entries."""
    set_size: Depth = 16
    """Images of a set: its tokens."""
    classes: Depth = 2
    """Classes of a set, each with the same number of images."""
    validation_share: Fraction = 0.2
    """Share of your images held out for validation, and as much for test,
    stratified; digits keep their splits."""

    def __post_init__(self) -> None:
        if self.root is not None and self.source == "digits":
            object.__setattr__(self, "source", "class_folders")


@options
class SceneConfig(SourceConfig):
    """Scenes to segment, and the folder for prepared data."""

    source: SceneSource = "shapes"
    """shapes: scenes drawn by the program, no files needed. camvid: in the layout of
    SegNet (train, trainannot). cityscapes: as published (leftImg8bit, gtFine), where
    val is the test split."""
    reduction: Width = 1
    """Divides both sides of the originals: images by averaging, labels by keeping
    one pixel of each block."""


@options
class TextConfig(SourceConfig):
    """Texts to classify, and the folder for prepared data."""

    source: TextSource = "verdicts"
    """verdicts: made-up sentences, no files needed. imdb, sst2, mnli: the published
    files, as folder or archive. table: a TSV, CSV or JSONL of your own.
    """
    validation_share: Fraction = 0.1
    """Share of the train texts held out for validation, stratified, where the data come
    without it (imdb, mnli, a table without such a file). A table without test file
    gives as much for that.
    """
    text_column: Text = "text"
    """Of a table: the column of the text."""
    label_column: Text = "label"
    """Of a table: the column of the class, which is a name or a number."""


@options
class InstructionConfig(SourceConfig):
    """Instructions that a language model learns to follow, and the folder for
    prepared data."""

    source: InstructionSource = "chores"
    """chores: made-up instructions of a few words, no files needed. alpaca: a .json
    list or .jsonl, or a folder with train.jsonl, and where there are any
    validation.jsonl and test.jsonl; each object has "instruction", perhaps "input", and
    "output"; or "prompt" and "answer".
    """
    validation_share: Fraction = 0.1
    """Share held out for validation, and as much for test; chores, and a folder with
    such files, keep their own."""


def sources_of(kind: type[SourceConfig]) -> tuple[str, ...]:
    """The names of the data of a class of options."""
    return get_args(get_type_hints(kind)["source"])


# By the class of their options: the modules within train/ that prepare data.
MODULES: dict[type[SourceConfig], str] = {
    DataConfig: "tasks.video.data",
    ImageConfig: "tasks.images.data",
    CodeConfig: "tasks.sparse_coding.data",
    SetConfig: "tasks.image_sets.data",
    SceneConfig: "tasks.images.data",
    TextConfig: "tasks.text.data",
    InstructionConfig: "tasks.language.instructions",
}
