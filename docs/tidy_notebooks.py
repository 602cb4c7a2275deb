"""Makes executed notebooks fit for a commit, in place:
`python docs/tidy_notebooks.py NOTEBOOK ...`."""

import base64
import io
import json
import sys
from pathlib import Path

from PIL import Image

RESULTS = Path(__file__).resolve().parent / "tutorials"
COLOURS = 128  # of a picture: curves and a few shades


def tidy(path: Path) -> None:
    """Drops the times at which cells ran, and saves pictures with few colours, in fewer
    bytes.

    The picture of the cell with the tag "result" is also saved in docs/tutorials; the
    opening of the notebook shows it.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                smaller = _smaller(base64.b64decode(picture))
                output["data"]["image/png"] = base64.b64encode(smaller).decode() + "\n"
                if "result" in cell["metadata"].get("tags", []):
                    (RESULTS / f"{path.stem}.png").write_bytes(smaller)
    path.write_text(
        json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _smaller(picture: bytes) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(
        file, "PNG", optimize=True
    )
    return file.getvalue()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        tidy(Path(name))
