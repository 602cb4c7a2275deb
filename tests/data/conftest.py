import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from tests.train.commands import quiet
from unroll_jax.train.tasks.image_sets import data as image_sets
from unroll_jax.train.tasks.image_sets.options import SetConfig
from unroll_jax.train.tasks.images import data as images
from unroll_jax.train.tasks.images.options import ImageConfig, SceneConfig
from unroll_jax.train.tasks.language import instructions
from unroll_jax.train.tasks.language.options import InstructionConfig
from unroll_jax.train.tasks.text import data as text
from unroll_jax.train.tasks.text.options import TextConfig
from unroll_jax.train.tasks.video import data as video
from unroll_jax.train.tasks.video.options import DataConfig

LOADERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    **dict.fromkeys(("photos", "video"), (DataConfig, video.load)),
    **dict.fromkeys(("digits", "cifar10", "image_folder"), (ImageConfig, images.load)),
    "class_folders": (SetConfig, image_sets.load),
    **dict.fromkeys(("shapes", "camvid", "cityscapes"), (SceneConfig, images.load)),
    **dict.fromkeys(
        ("verdicts", "imdb", "sst2", "mnli", "table"), (TextConfig, text.load)
    ),
    **dict.fromkeys(("chores", "alpaca"), (InstructionConfig, instructions.load)),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``opened(source, root, log, **options)``: a source, prepared in a folder of
    the module."""
    prepared = tmp_path_factory.mktemp("prepared")

    def open_source(
        source: str, root: Path | str | None = None, log: Any = quiet, **options: Any
    ) -> Any:
        config, load = LOADERS[source]
        where = None if root is None else str(root)
        return load(
            config(source, where, **{"prepared": str(prepared), **options}), log=log
        )

    return open_source


def write_pictures(
    root: Path,
    counts: Mapping[str, int],
    *,
    size: tuple[int, int] = (6, 5),
    suffix: str = "png",
    mode: str = "RGB",
) -> Path:
    generator = np.random.default_rng(0)
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(1, count + 1):
            pixels = generator.integers(0, 256, (size[1], size[0], 3), np.uint8)
            Image.fromarray(pixels).convert(mode).save(
                root / folder / f"{number:03d}.{suffix}"
            )
    return root


def write(root: Path, files: Mapping[str, Any]) -> Path:
    """Writes pictures of arrays, texts, bytes, and what functions of a path write."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        elif isinstance(content, np.ndarray):
            Image.fromarray(content).save(path)
        else:
            content = content.encode() if isinstance(content, str) else content
            path.write_bytes(content)
    return root


def write_video(
    path: Path,
    num_frames: int,
    *,
    codec: str = "ffv1",
    side: int = 160,
    frames: list[np.ndarray] | None = None,
) -> Path:
    """Writes a video, lossless unless its codec is not, of given frames; or else the
    n-th one is of grey level 2n."""
    av = pytest.importorskip("av", reason="av, which reads videos, is not installed")
    pixels = "gray" if codec in ("ffv1", "png") else "yuv420p"
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = side, side, pixels
        for number in range(num_frames):
            image = (
                np.full((side, side), 2 * number, np.uint8)
                if frames is None
                else frames[number]
            )
            frame = av.VideoFrame.from_ndarray(image, format="gray")
            container.mux(stream.encode(frame.reformat(format=pixels)))
        container.mux(stream.encode())
    return path


def truncate(path: Path, share: float = 0.4) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def pack(
    root: Path, mode: Literal["w", "w:gz", "zip"] | None = "w", *, reverse: bool = False
) -> Path:
    """Packs a folder's files into an archive next to it, in order or against it. None
    leaves the folder. As some programs do, the archive has an entry for a folder
    outside of it.
    """
    if mode is None:
        return root
    if mode == "zip":
        archive = Path(shutil.make_archive(str(root), "zip", root.parent, root.name))
        with zipfile.ZipFile(archive, "a") as members:
            members.writestr("/", "")
        return archive
    archive = root.parent / (
        f"{root.name}.tar" if mode == "w" else f"{root.name}.tar.gz"
    )
    outside = tarfile.TarInfo("../")
    outside.type = tarfile.DIRTYPE
    with tarfile.open(archive, mode) as tar:
        tar.addfile(outside)
        for file in sorted(root.rglob("*"), reverse=reverse):
            tar.add(file, file.relative_to(root.parent), recursive=False)
    return archive


def drawn_tensors(
    shapes: Mapping[str, tuple[int, ...]], dtype: Any = np.float32, scale: float = 1.0
) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    return {name: draw(0, scale, size).astype(dtype) for name, size in shapes.items()}


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    tokenizer: Any,
    tensors: dict[str, np.ndarray],
) -> Path:
    """Writes a folder as `transformers` does. None leaves a field of the configuration
    out."""
    folder.mkdir()
    values = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    if "UNROLL_DATA" not in os.environ:
        pytest.skip("UNROLL_DATA does not name the folder of real data")
    return Path(os.environ["UNROLL_DATA"])


@pytest.fixture(scope="module")
def oracles() -> tuple[Any, Any]:
    """The modules torch and transformers. Imported here, as every worker collects
    tests and that takes seconds."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    return torch, transformers
