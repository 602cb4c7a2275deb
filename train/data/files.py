"""Original files, in folders and in tar and zip archives, their fingerprints, and
the splits that their names state."""

import contextlib
import hashlib
import io
import lzma
import re
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from ..config.errors import PLAIN, UNSHOWN, UserError, one_line, option_text
from ..system.files import open_regular

Log = Callable[[str], None]
Wanted = Callable[[PurePosixPath], bool]
# zipfile raises RuntimeError over passwords and unknown methods of compression.
ARCHIVE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    RuntimeError,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
)
SPLITS = ("train", "validation", "test")
# of the choice of held-out or kept examples: the same in every run, for any seed of the
# run
SEED = 0

# UCSD has Train and Test. ShanghaiTech and copies of Ped2 and Avenue as frames have
# training/frames and testing/frames. Avenue has training_videos and testing_videos.
HELD_OUT = ("eval", "evaluation", "validate", "heldout", "holdout")
ENDINGS = ("", "_frames", "_videos")
KNOWN = {
    **{name + end: "train" for name in ("train", "training") for end in ENDINGS},
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **{name + end: "test" for name in ("test", "testing") for end in ENDINGS},
}
# Unicode's characters that are shown as nothing (Default_Ignorable_Code_Point), and
# marks between lines of ruby.
INVISIBLE = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class OriginalFile(NamedTuple):
    """A file, and its path below the root, or in the archive that the root is."""

    path: PurePosixPath
    local: Path


class Published(NamedTuple):
    """Files as published: their names, and what to give in words."""

    names: tuple[str, ...]
    wanted: str

    def fingerprint(self, root: Path) -> str:
        """Fingerprints the files in a folder, or an archive."""
        return fingerprint_below(root, self.holds)

    def holds(self, path: PurePosixPath) -> bool:
        """Returns whether a file has one of the names."""
        return path.name in self.names

    @contextlib.contextmanager
    def open(self, root: Path) -> Iterator[dict[str, OriginalFile]]:
        """Finds all the files by their names; of several of one name, the one in the
        fewest folders, and of those the first by name."""
        with original_files(root, self.holds) as (files, _):
            by_name: dict[str, OriginalFile] = {}
            for file in sorted(files, key=lambda file: (len(file.path.parts), file)):
                by_name.setdefault(file.path.name, file)
            for name in self.names:
                if name not in by_name:
                    raise UserError(f"holds no {name}; give {self.wanted}")
            yield by_name


def likely_splits(name: str) -> set[str]:
    """Returns the splits that words of a name may mean, as those of TestSet-1 and
    my_training_set do."""
    splits = set()
    for word in WORD.findall(name):
        word = re.sub("^(train|test).*", r"\1", word.lower())
        splits |= {"validation" if word in HELD_OUT else KNOWN.get(word, "")}
    return splits - {""}


def check_one_name(splits: Mapping[str, str]) -> None:
    """Checks that each split has one name, given the splits of names: train and
    training are one split."""
    names: dict[str, str] = {}
    for name, split in sorted(splits.items()):
        other = names.setdefault(split, name)
        if other != name:
            raise UserError(f"holds {other} and {name}; keep one of them")


def check_no_split(unread: Iterable[str], wanted: str) -> None:
    """Checks that nothing that is passed over looks like a split, which would be cut
    from train instead."""
    for name in unread:
        if likely_splits(name):
            raise UserError(
                f"'{name}' looks like a split that is not read; {wanted}; rename it"
                " if it is none"
            )


def class_name(name: str) -> str:
    """Returns the name of a class in the composed form of Unicode, without invisible
    characters: classes do not differ by these."""
    return INVISIBLE.sub("", unicodedata.normalize("NFC", name)).strip()


def log_alike(names: Iterable[str], log: Log) -> None:
    """Warns of names of classes that differ in case, width, spaces or as 1 and 01
    only."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        form = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        with contextlib.suppress(ValueError):
            form = str(float(form))
        alike[form].append(ascii(name))
    for each in alike.values():
        if len(each) > 1:
            shown = " and ".join(each)
            log(f"  warning: the classes {shown} look alike, and are read as different")


def fingerprint_files(files: Iterable[Path], *, root: Path) -> str:
    """Hashes names below the root and contents. Of a root that is a file, only the
    file's name counts. The twelve digits are the key of prepared data.
    """
    # Names, sizes and times of change are not enough: archives that are made
    # reproducibly, and copies by `rsync -t`, share them with other contents.
    root = root.parent if root.is_file() else root
    digest = hashlib.sha256()
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        check_name(name)
        with open_regular(file, where=str(file)) as content:
            contents = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{name}\0{contents}\n".encode())
    return digest.hexdigest()[:12]


def fingerprint_below(root: Path, wanted: "Wanted | None" = None) -> str:
    """Fingerprints the wanted files of a folder, by default the visible ones, or of a
    root that is a file the file."""
    files = [root]
    if root.is_dir():
        files = [file.local for file in files_below(root, wanted or is_visible)[0]]
    return fingerprint_files(files, root=root)


def fingerprint_program(file: str, *packages: str) -> Callable[[Path], str]:
    """Returns the fingerprint of generated data: of the program's file and the
    versions of its packages."""

    def fingerprint(_: Path) -> str:
        versions = " ".join(map(metadata.version, packages)).encode()
        return hashlib.sha256(versions + Path(file).read_bytes()).hexdigest()[:12]

    return fingerprint


def check_name(name: str) -> None:
    """Checks that a name is UTF-8 without control characters: logs and reports show
    names."""
    if UNSHOWN.search(name):
        raise UserError(f"the name {name!a} is not {PLAIN}; rename the file or folder")


def is_visible(path: PurePosixPath) -> bool:
    """Returns whether a file is to be looked at: hidden ones and the shadow files of
    macOS archives are not."""
    return not any(re.match(r"\.(?!\.$)|__MACOSX$", part) for part in path.parts)


def files_below(
    root: Path, wanted: Wanted = lambda _: True
) -> tuple[list[OriginalFile], list[PurePosixPath]]:
    """Lists the wanted files below a folder, following links, and empty folders.
    Unlistable ones are an error."""
    files: list[OriginalFile] = []
    empty: list[PurePosixPath] = []

    def look(here: PurePosixPath, above: set[Path]) -> None:
        folder = root / here
        if folder.resolve() in above:
            raise UserError(f"'{folder}' links to a folder above it; remove the link")
        inside = [here / entry.name for entry in folder.iterdir()]
        if wanted(here) and not any(map(wanted, inside)):
            empty.append(here)
        for path in inside:
            check_name(str(path))
            if (root / path).is_dir():
                look(path, above | {folder.resolve()})
            elif wanted(path):
                files.append(OriginalFile(path, root / path))

    look(PurePosixPath(), set(root.resolve().parents))
    return files, empty


@contextlib.contextmanager
def original_files(
    root: Path, wanted: Wanted
) -> Iterator[tuple[list[OriginalFile], list[PurePosixPath]]]:
    """Lists the wanted files and the empty folders of a folder, or of a tar or zip
    archive. An archive must be whole. Its wanted files are unpacked into a temporary
    folder for as long as the context lasts.
    """
    if root.is_dir():
        yield files_below(root, wanted)
        return
    unpack = _unpack_zip if zipfile.is_zipfile(root) else _unpack_tar
    with tempfile.TemporaryDirectory() as folder:
        try:
            unpack(root, Path(folder), wanted)
        except ARCHIVE_ERRORS as error:
            if isinstance(error, OSError) and error.errno:
                raise  # of the disk: the archive may be whole
            raise UserError(
                "is neither a folder nor a whole tar or zip archive"
                f" ({one_line(error)}); copy it again"
            ) from error
        yield files_below(Path(folder))


def hold_out(labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Divides examples into two parts with the same share of each class, up to
    rounding. Returns the numbers of examples that stay and of the ``count`` that are
    held out, ascending: functions of labels and count only.
    """
    # takes a second, and is needed only to prepare
    from sklearn.model_selection import train_test_split

    try:
        stay, held_out = train_test_split(
            np.arange(len(labels)),
            test_size=count,
            stratify=labels,
            random_state=SEED,
        )
    except ValueError as error:
        raise UserError(
            f"{count} of the {len(labels)} examples of train cannot be held out"
            f" ({one_line(error)}); give more, or another"
            f" {option_text('data.validation_share')}"
        ) from error
    return np.sort(stay), np.sort(held_out)


def tenth(count: int) -> int:
    """Returns a tenth of a count, at least one: the default number of held-out
    things."""
    return max(1, round(count / 10))


def three_splits(
    labels: Mapping[str, np.ndarray], share: float, *, equal: bool = False
) -> dict[str, tuple[str, np.ndarray]]:
    """Returns for each split the one that has its examples, and their numbers there,
    given the labels of some splits. Missing ones are cut from train, test first, with
    the same share of each class. The share is of all that train has then, or with
    ``equal`` of all that it had.
    """
    places = {split: (split, np.arange(len(each))) for split, each in labels.items()}
    for split in reversed(SPLITS):
        if split not in labels:
            _, numbers = places["train"]
            total = len(labels["train"] if equal else numbers)
            stay, held_out = hold_out(labels["train"][numbers], round(share * total))
            places["train"] = "train", numbers[stay]
            places[split] = "train", numbers[held_out]
    return {split: places[split] for split in SPLITS}


def _unpack_tar(root: Path, folder: Path, wanted: Wanted) -> None:
    def choose(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo | None:
        inside = PurePosixPath(member.name)
        # some programs add a folder outside. Files there have members of their own
        if not wanted(inside) or (member.isdir() and ".." in inside.parts):
            return None
        return tarfile.data_filter(member, str(folder))

    with tarfile.open(root) as archive:
        # In turn: seeking back in a compressed archive would decompress it again from
        # its start.
        archive.extractall(folder, archive, filter=choose)
        # tarfile accepts an archive that stops between members or in a header. A
        # complete one ends in zeros.
        ending = archive.fileobj or io.BytesIO()
        ending.seek(archive.offset)
        if ending.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.TarError("it has no end mark")


def _unpack_zip(root: Path, folder: Path, wanted: Wanted) -> None:
    with zipfile.ZipFile(root) as archive:
        for name in archive.namelist():
            if wanted(PurePosixPath(name)) and name != "/":
                archive.extract(name, folder)
