"""Data that a run trains and is tested on, and the folder for prepared data."""

import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args, get_type_hints

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

    own: ClassVar[str]
    """The source of files at --data.root that no published data have."""

    source: Text
    """Name of the data."""
    root: Text | None = None
    """Path of the original files; data that the program makes need none. What lies
    there tells the source, if none is given."""
    prepared: Text | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""

    def __post_init__(self) -> None:
        """Takes the source of the files at the root in place of one without files."""
        if self.root is not None and self.source == sources_of(type(self))[0]:
            object.__setattr__(self, "source", source_at(self.root, type(self)))


@options
class DataConfig(SourceConfig):
    """Video to train and test on, and the folder for prepared data."""

    own: ClassVar[str] = "video"

    source: VideoSource = "photos"
    """photos: clips filmed over two photographs, no files needed. video: a folder tree
    or archive, in folders of splits as published (UCSD, Avenue, ShanghaiTech) or a
    folder of frames or a video a clip; or one video file.
    """


@options
class ImageConfig(SourceConfig):
    """Images to classify, and the folder for prepared data."""

    own: ClassVar[str] = "image_folder"

    source: ImageSource = "digits"
    """digits: 8x8 grey digits, no files needed. cifar10: the binary version, as archive
    or folder. image_folder: your images, as folder or archive.
    """
    root: Text | None = None
    """Folder or archive of your images, with a folder for each of two or more
    classes, ROOT/CLASS/NAME.png (or jpg), or of splits with such, as train/CLASS/..
    and test/CLASS/... What lies there tells the source, if none is given."""
    size: Annotated[int, Field(ge=4, le=1024)] | None = None
    """Images are resized to size x size pixels; None: all have one size."""
    validation_share: Fraction = 0.1
    """Share of train images held out for validation, stratified, and of all as much for
    test, where the images have no such splits."""


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

    own: ClassVar[str] = "class_folders"

    source: SetSource = "digits"
    """digits: scikit-learn's 8x8 digits, no files needed. class_folders: your
    images; --data.root implies it."""
    root: Text | None = None
    """Folder or archive of your images, with a folder for each of two or more
    classes, ROOT/CLASS/NAME.png (or jpg), or of splits with such, as train/CLASS/...
    """
    size: Annotated[int, Field(ge=4, le=64)] = 8
    """Images are resized to size x size pixels; a token has as many entries."""
    set_size: Depth = 16
    """Images of a set: its tokens."""
    classes: Depth = 2
    """Classes of a set, each with the same number of images."""
    validation_share: Fraction = 0.2
    """Share of your images held out for validation, and as much for test,
    stratified; digits keep their splits."""


@options
class SceneConfig(SourceConfig):
    """Scenes to segment, and the folder for prepared data."""

    own: ClassVar[str] = "camvid"

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

    own: ClassVar[str] = "table"

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

    own: ClassVar[str] = "alpaca"

    source: InstructionSource = "chores"
    """chores: made-up instructions of a few words, no files needed. alpaca: a .json
    list or .jsonl, or a folder with train.jsonl, and where there are any
    validation.jsonl and test.jsonl; each object has "instruction", perhaps "input", and
    "output"; or "prompt" and "answer".
    """
    validation_share: Fraction = 0.1
    """Share held out for validation, and as much for test; chores, and a folder with
    such files, keep their own."""


# By source: names of its files, folders or archive.
SIGNS = {
    "cifar10": r"data_batch_1\.bin|cifar-10-.*",
    "cityscapes": r"leftImg8bit.*|gtFine.*",
    "imdb": r"aclImdb.*|imdb\.vocab",
    "sst2": r"SST-2.*",
    "mnli": r"multinli_1\.0.*",
}
LEVELS = 3  # of folders that are looked through for names


def source_at(root: str, kind: type[SourceConfig]) -> str:
    """Returns the source of the files at a root, by their names."""
    names = {Path(root).name, *_names_below(Path(root).expanduser())}
    for source in sources_of(kind):
        sign = SIGNS.get(source)
        if sign is not None and any(re.fullmatch(sign, name) for name in names):
            return source
    return kind.own


def _names_below(root: Path) -> Iterator[str]:
    """Yields names of folders and files near a root, or in an archive; an archive that
    cannot be read is an error when it is prepared."""
    if root.is_dir():
        for folder, inside, files in os.walk(root):
            yield from (*inside, *files)
            if len(Path(folder).relative_to(root).parts) + 1 >= LEVELS:
                inside.clear()
        return
    try:
        if zipfile.is_zipfile(root):
            with zipfile.ZipFile(root) as archive:
                paths = archive.namelist()
        elif root.is_file() and tarfile.is_tarfile(root):
            with tarfile.open(root) as archive:
                paths = archive.getnames()
        else:
            return
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile):
        return
    for path in paths:
        yield from path.split("/")


def sources_of(kind: type[SourceConfig]) -> tuple[str, ...]:
    """The names of the data of a class of options."""
    return get_args(get_type_hints(kind)["source"])


# By the class of their options: the modules of `train.data` that prepare data.
MODULES: dict[type[SourceConfig], str] = {
    DataConfig: "video",
    ImageConfig: "images",
    CodeConfig: "codes",
    SetConfig: "image_sets",
    SceneConfig: "images",
    TextConfig: "text",
    InstructionConfig: "instructions",
}
