"""Checks that the wheel and the sdist in dist/ hold the package, its application,
and nothing else."""

import tarfile
import zipfile
from pathlib import Path

ABOUT = {
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "pyproject.toml",
    ".gitignore",
}


def modules() -> set[str]:
    """Returns the files that both archives must hold, by their path in the wheel."""
    rooms = {Path("unroll_jax"): "unroll_jax", Path("train"): "unroll_jax/train"}
    return {
        f"{place}/{path.relative_to(root).as_posix()}"
        for root, place in rooms.items()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def main() -> None:
    """Compares both archives with the working tree."""
    (wheel,), (source,) = (
        list(Path("dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz")
    )
    shipped = {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name
    }
    if shipped != modules():
        raise SystemExit(
            f"{wheel} differs from the working tree in {sorted(shipped ^ modules())}"
        )
    with tarfile.open(source) as archive:
        archived = {
            member.name.partition("/")[2] for member in archive if member.isfile()
        }
    if archived != modules() | ABOUT:
        raise SystemExit(
            f"{source} differs from the working tree in"
            f" {sorted(archived ^ (modules() | ABOUT))}"
        )
    print(
        f"{wheel.name} and {source.name} hold unroll_jax and its application,"
        f" {len(shipped)} files"
    )


if __name__ == "__main__":
    main()
