import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from train.data import DataConfig, VideoData, load

WriteClips = Callable[..., Path]


@pytest.fixture
def write_clips(tmp_path: Path) -> WriteClips:
    """Writes clip folders of random frames, {folder: number of frames}, below a new root."""

    def write(lengths: Mapping[str, int], *, size: tuple[int, int] = (160, 160), suffix: str = "png") -> Path:
        root = tmp_path / "clips"
        generator = np.random.default_rng(0)
        for folder, length in lengths.items():
            (root / folder).mkdir(parents=True)
            for number in range(1, length + 1):
                pixels = generator.integers(0, 256, (size[1], size[0]), np.uint8)
                Image.fromarray(pixels).save(root / folder / f"{number:03d}.{suffix}")
        return root

    return write


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> VideoData:
    """The photos, prepared once for all tests."""
    return load(DataConfig(prepared=str(tmp_path_factory.mktemp("prepared"))), log=lambda line: None)


@pytest.fixture
def real_data() -> Path:
    """The folder of real data files."""
    if "UNROLL_DATA" not in os.environ:
        pytest.skip("UNROLL_DATA does not name the folder of real data")
    return Path(os.environ["UNROLL_DATA"])
