"""Pictures of video: a test frame without noise, with it, and as models clean it; and a clip of them side by side."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from ..config.errors import UserError
from ..system.files import write_all
from . import Picture
from .groups import METHOD_NAMES
from .panels import WIDTH
from .record import Array, read_runs

CLEAN = "clean"
MOST_COLUMNS = 8
WHITE = 255
MILLISECONDS = 120  # a frame of the clip
SMALLEST = 160  # pixels of a side in the clip, so that its labels fit
LINES, LINE_HEIGHT = 2, 13  # of a label in the clip: name, error
CAPTION = (
    "Frame {} of a test clip: without noise, with it, and as each model cleans it; grey levels 0 to 255. RMSE is of "
    "the frame that is shown, before levels beyond are cut off. {}.gif shows the clip at gamma {:g}."
)

Shown = Mapping[float, Mapping[str, np.ndarray]]


def write_gallery(out: Path, name: str, shown: Shown, words: str = "") -> Picture:
    """Writes the clip as NAME.gif; returns the picture of one frame, which reports write as NAME.png.

    Args:
      out: the folder.
      name: of both files.
      shown: by gamma, float (frames, height, width) in grey levels: "clean" and whatever is compared with it.
      words: that the caption begins with.
    """
    frame, gamma = _middle(shown), max(shown)
    write_all(out, {f"{name}.gif": draw_clip(shown, gamma)})
    caption = CAPTION.format(frame, name, gamma)
    return Picture(name, f"{words} {caption}".strip(), draw_gallery(shown, frame=frame))


def write_pictures(out: Path, shown: Shown) -> None:
    """Writes gallery.png and gallery.gif."""
    write_all(out, {"gallery.png": write_gallery(out, "gallery", shown).data})


def named_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders of evaluated runs by their methods, or where these are not apart by their own names."""
    runs = read_runs(folders)
    methods = [METHOD_NAMES.get(run.evaluation.get("method", ""), run.name) for run in runs]
    apart = len(set(methods)) == len(runs)
    return {method if apart else run.name: run.folder for method, run in zip(methods, runs, strict=True)}


def draw_gallery(shown: Shown, *, frame: int | None = None) -> Figure:
    """A row for every gamma: one frame of each column, titled by its RMSE; None takes the middle frame."""
    columns = _columns(shown)
    frame = _middle(shown) if frame is None else frame
    _, height, width = next(iter(next(iter(shown.values())).values())).shape
    inches = WIDTH / len(columns)
    size = (WIDTH, len(shown) * (0.93 * inches * height / width + 0.42))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(shown), len(columns), squeeze=False)
    for row, (gamma, by_name) in zip(grid, shown.items(), strict=True):
        for axes, name in zip(row, columns, strict=True):
            axes.imshow(by_name[name][frame], cmap="gray", vmin=0, vmax=WHITE, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.set_title("\n".join(_label(by_name, name, frame)), fontsize="small")
        row[0].set_ylabel(f"test gamma {gamma:g}")
    return figure


def draw_clip(shown: Shown, gamma: float) -> bytes:
    """All frames at one gamma side by side, as an animated GIF of 256 grey levels, without end."""
    columns, by_name = _columns(shown), shown[gamma]
    count = len(by_name[CLEAN])
    pages = [_page(by_name, columns, frame) for frame in range(count)]
    file = io.BytesIO()
    pages[0].save(
        file, format="GIF", save_all=True, append_images=pages[1:], duration=MILLISECONDS, loop=0, optimize=False
    )
    return file.getvalue()


def frame_rmse(frame: Array, clean: Array) -> float:
    """Root mean squared error of a frame on the 0-255 scale."""
    return float(np.sqrt(np.mean(np.square(np.asarray(frame, np.float64) - clean))))


def _page(by_name: Mapping[str, np.ndarray], columns: list[str], frame: int) -> Image.Image:
    _, height, width = by_name[CLEAN].shape
    scale = -(-SMALLEST // width)
    top = LINES * LINE_HEIGHT + 4
    page = Image.new("L", (scale * width * len(columns), scale * height + top), WHITE)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(LINE_HEIGHT - 2)
    for place, name in enumerate(columns):
        pixels = np.clip(np.round(by_name[name][frame]), 0, WHITE).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((scale * width, scale * height), Image.Resampling.NEAREST)
        page.paste(picture, (place * scale * width, top))
        draw.text((place * scale * width + 4, 1), "\n".join(_label(by_name, name, frame)), fill=0, font=font, spacing=1)
    return page


def _label(by_name: Mapping[str, np.ndarray], name: str, frame: int) -> tuple[str, ...]:
    if name == CLEAN:
        return name, "grey levels 0-255"
    return name, f"RMSE {frame_rmse(by_name[name][frame], by_name[CLEAN][frame]):.1f}"


def _columns(shown: Shown) -> list[str]:
    columns = list(next(iter(shown.values())))
    if len(columns) > MOST_COLUMNS:
        raise UserError(f"a gallery has room for {MOST_COLUMNS - 2} runs, got {len(columns) - 2}; give fewer of them")
    return columns


def _middle(shown: Shown) -> int:
    return len(next(iter(shown.values()))[CLEAN]) // 2
