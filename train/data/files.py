"""Original files, in folders and in tar and zip archives, their fingerprints, and
the splits that their names state."""

import contextlib
import hashlib
import io
import lzma
import os
import re
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

import numpy as np

from ..config.errors import PLAIN, UNSHOWN, UserError, option_text
from ..system.files import REFUSED, require_room, system_errors
from ..system.reading import open_regular

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

# UCSD has Train and Test; ShanghaiTech and copies of Ped2 and Avenue as frames have
# training/frames and testing/frames; Avenue has training_videos and testing_videos.
NAMES = {
    "train": (
        "train",
        "training",
        "train_frames",
        "training_frames",
        "train_videos",
        "training_videos",
    ),
    "validation": ("validation", "valid", "val", "dev"),
    "test": (
        "test",
        "testing",
        "test_frames",
        "testing_frames",
        "test_videos",
        "testing_videos",
    ),
}
KNOWN = {name: split for split, names in NAMES.items() for name in names}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class OriginalFile(NamedTuple):
    """A file, and its path below the root, or in the archive that the root is."""

    path: PurePosixPath
    local: Path


class Published(NamedTuple):
    """Files as published: their names, folders below a root that may hold them,
    archives there, and all in words."""

    names: tuple[str, ...]
    folders: tuple[str, ...]
    archives: tuple[str, ...]
    wanted: str

    def find(self, root: Path) -> Path:
        """Returns the folder that holds the first of the names, or the archive; a
        root that is a file is one."""
        if root.is_file():
            return root
        require_listable(root)
        folders = (
            root / folder
            for folder in self.folders
            if (root / folder / self.names[0]).exists()
        )
        archives = (
            path
            for pattern in self.archives
            for path in sorted(root.glob(pattern))
            if path.is_file()
        )
        if (source := next(folders, None) or next(archives, None)) is None:
            raise root_error(root, f"holds no {self.names[0]}; give {self.wanted}")
        return source

    def fingerprint(self, root: Path) -> str:
        """Fingerprints the wanted files of the folder, or the archive."""
        source = self.find(root)
        files = [path for name in self.names if (path := source / name).exists()]
        return fingerprint_files(files or [source], root=source)

    @contextlib.contextmanager
    def open(self, root: Path) -> Iterator[dict[str, OriginalFile]]:
        """Finds all the files by their names; of several of one name, the one in the
        fewest folders, and of those the first by name."""
        with original_files(self.find(root), lambda path: path.name in self.names) as (
            files,
            _,
        ):
            deepest_first = sorted(
                files, key=lambda file: (len(file.path.parts), file.path), reverse=True
            )
            by_name = {file.path.name: file for file in deepest_first}
            for name in self.names:
                if name not in by_name:
                    raise root_error(root, f"holds no {name}; give {self.wanted}")
            yield by_name


def root_error(root: Path | str, problem: str) -> UserError:
    """Returns an error about a root; the problem follows its name, or is a clause
    after a colon."""
    space = "" if problem.startswith(":") else " "
    return UserError(f"{option_text('data.root', root)}{space}{problem}")


def likely_splits(name: str) -> frozenset[str]:
    """Returns the splits that words of a name may mean, as those of TestSet-1 and
    my_training_set do."""
    words = {word.lower() for word in WORD.findall(name)}
    split_of = (
        KNOWN
        | {"eval": "validation"}
        | {w: s for w in words for s in ("train", "test") if w.startswith(s)}
    )
    return frozenset(split_of[word] for word in words & split_of.keys())


def check_one_name(splits: Mapping[str, str], root: Path) -> None:
    """Checks that each split has one name, given the splits of names: train and
    training are one split."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, split in sorted(splits.items()):
        names[split].append(name)
    for each in names.values():
        if len(each) > 1:
            raise root_error(root, f"holds {' and '.join(each)}; keep one of them")


def check_no_split(unread: Iterable[str], root: Path, wanted: str) -> None:
    """Checks that nothing that is passed over looks like a split, which would be cut
    from train instead."""
    for name in unread:
        if likely_splits(name):
            raise root_error(
                root,
                f": '{name}' looks like a split that is not read; {wanted}; rename it"
                " if it is none",
            )


def log_alike(names: Iterable[str], log: Log) -> None:
    """Warns of names of classes that differ in case, width or spaces only."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        form = unicodedata.normalize("NFKC", name).casefold()
        alike["".join(form.split())].append(name)
    for each in alike.values():
        if len(each) > 1:
            shown = " and ".join(map(ascii, each))
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
        check_name(name, root)
        with open_regular(file, where=str(file)) as content:
            contents = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{name}\0{contents}\n".encode())
    return digest.hexdigest()[:12]


def fingerprint_program(file: str, *packages: str) -> Callable[[Path], str]:
    """Returns the fingerprint of generated data: of the program's file and the
    versions of its packages."""

    def fingerprint(_: Path) -> str:
        versions = " ".join(metadata.version(package) for package in packages)
        return hashlib.sha256(versions.encode() + Path(file).read_bytes()).hexdigest()[
            :12
        ]

    return fingerprint


def check_name(name: str, root: Path) -> None:
    """Checks that a name is UTF-8 without control characters: logs and reports show
    names."""
    if UNSHOWN.search(name):
        raise root_error(
            root, f": the name {name!a} is not {PLAIN}; rename the file or folder"
        )


def is_visible(path: PurePosixPath) -> bool:
    """Returns whether a file is to be looked at: hidden ones and the shadow files of
    macOS archives are not."""
    return not any(
        (part.startswith(".") and part != "..") or part == "__MACOSX"
        for part in path.parts
    )


def files_below(
    root: Path, wanted: Wanted = lambda _: True
) -> tuple[list[OriginalFile], list[PurePosixPath]]:
    """Lists the wanted files below a folder, following links, and empty folders;
    unlistable ones are an error."""
    files, empty = [], []
    for folder, inside, names in os.walk(
        root, followlinks=True, onerror=_raise_unlistable
    ):
        here = PurePosixPath(Path(folder).relative_to(root).as_posix())
        for name in names:
            check_name(str(here / name), root)
            files.append(OriginalFile(here / name, Path(folder, name)))
        if not any(wanted(here / name) for name in (*inside, *names)):
            empty.append(here)
        for link in (Path(folder, name) for name in inside):
            if link.is_symlink() and _is_above(link.resolve(), Path(folder), root):
                raise root_error(
                    root, f": '{link}' links to a folder above it; remove the link"
                )
    return [file for file in files if wanted(file.path)], [
        folder for folder in empty if wanted(folder)
    ]


def require_listable(folder: Path) -> None:
    """Checks that a folder can be listed: `Path.glob` takes others for empty ones."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        _raise_unlistable(error)


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
    with tempfile.TemporaryDirectory() as folder:
        try:
            with system_errors(Path(folder)):
                (_unpack_zip if zipfile.is_zipfile(root) else _unpack_tar)(
                    root, Path(folder), wanted
                )
        except ARCHIVE_ERRORS as error:
            if isinstance(error, OSError) and error.errno in REFUSED:
                raise
            raise _damaged(root, error) from error
        yield files_below(Path(folder))


def hold_out(
    labels: np.ndarray, share: float, names: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Divides examples into two parts with the same share of each class, up to
    rounding. Returns the numbers of examples that stay and of examples held out,
    ascending: functions of labels and share only.
    """
    # takes a second, and is needed only to prepare
    from sklearn.model_selection import train_test_split

    classes, counts = np.unique_counts(labels)
    num_held_out = round(share * len(labels))
    if (single := classes[counts < 2]).size:
        raise ValueError(
            f"the class {names[single[0]]!r} has a single example"
            if names
            else "there is one only"
        )
    if min(num_held_out, len(labels) - num_held_out) < len(counts):
        raise ValueError(
            f"{num_held_out} of {len(labels)} are held out; each split needs all"
            f" {len(counts)} classes"
        )
    numbers = np.arange(len(labels))
    stay, held_out = train_test_split(
        numbers, test_size=num_held_out, stratify=labels, random_state=SEED
    )
    return np.sort(stay), np.sort(held_out)


def tenth(count: int) -> int:
    """Returns a tenth of a count, at least one: the default number of held-out
    things."""
    return max(1, round(count / 10))


def check_share(share: float) -> None:
    """Checks the share of train that is held out to validate."""
    if not 0.0 < share < 1.0:
        raise UserError(
            f"{option_text('data.validation_share')} must be in (0, 1), got {share}"
        )


def three_splits(
    labels: Mapping[str, np.ndarray],
    share: float,
    what: str,
    instead: str,
    names: Sequence[str] = (),
) -> dict[str, tuple[str, np.ndarray]]:
    """Returns for each split the one that has its examples, and their numbers there,
    given the labels of some splits. Missing ones are cut from train, test first, with
    the same share of each class; see `cut_from_train`.
    """
    places = {split: (split, np.arange(len(each))) for split, each in labels.items()}
    for split in (name for name in reversed(SPLITS) if name not in labels):
        _, numbers = places["train"]
        stay, held_out = cut_from_train(
            labels["train"][numbers], share, what, f"{split} {instead}", names
        )
        places |= {
            "train": ("train", numbers[stay]),
            split: ("train", numbers[held_out]),
        }
    return {split: places[split] for split in SPLITS}


def cut_from_train(
    labels: np.ndarray, share: float, what: str, instead: str, names: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Divides the examples of train by `hold_out`; ``instead`` would make that
    needless, ``names`` are of classes."""
    try:
        return hold_out(labels, share, names)
    except ValueError as error:
        option = option_text("data.validation_share", f"{share:g}")
        words = (
            f"{option} cannot be cut from the train {what} ({error}); give more,"
            f" another share, or a {instead}"
        )
        raise UserError(words) from error


def _raise_unlistable(error: OSError) -> NoReturn:
    raise root_error(
        error.filename, f"cannot be listed ({error.strerror}); it needs permission"
    ) from error


def _is_above(place: Path, folder: Path, root: Path) -> bool:
    """Returns whether a place is or holds a folder on the way from the root to
    ``folder``, also through links."""
    way = (
        folder,
        *(parent for parent in folder.parents if parent.is_relative_to(root)),
    )
    return any(each.resolve().is_relative_to(place) for each in way)


def _unpack_tar(root: Path, folder: Path, wanted: Wanted) -> None:
    def choose(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo | None:
        inside = PurePosixPath(member.name)
        # some programs add a folder outside; files there have members of their own
        outside = inside.is_absolute() or ".." in inside.parts
        if not wanted(inside) or (member.isdir() and outside):
            return None
        require_room(folder, member.size, f"{member.name} of {root}")
        return tarfile.data_filter(member, str(folder))

    with tarfile.open(root) as archive:
        # In turn: seeking back in a compressed archive would decompress it again from
        # its start.
        archive.extractall(folder, archive, filter=choose)
        # tarfile accepts an archive that stops between members or in a header. A
        # complete one ends in zeros.
        ending = io.BytesIO() if archive.fileobj is None else archive.fileobj
        ending.seek(archive.offset)
        if ending.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise _damaged(root, "it has no end mark")


def _unpack_zip(root: Path, folder: Path, wanted: Wanted) -> None:
    with zipfile.ZipFile(root) as archive:
        members = [
            member
            for member in archive.infolist()
            if wanted(PurePosixPath(member.filename)) and member.filename != "/"
        ]
        require_room(folder, sum(member.file_size for member in members), str(root))
        archive.extractall(folder, members)


def _damaged(root: Path, error: Exception | str) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
    return root_error(
        root,
        f"is neither a folder nor a whole tar or zip archive ({reason}); copy it again",
    )
