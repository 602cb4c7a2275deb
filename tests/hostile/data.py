"""Videos, images, texts and encoders meant to break what reads them: a line that
names the root (more: tests/data)."""

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.data.pretrained.conftest import CONFIG, WORDS, bert_tensors, word_tokenizer
from tests.hostile.command import Command
from tests.hostile.given import Given, bomb, both, files, image, pictures

THREE = {"d/a": 20, "d/b": 20, "d/c": 20}
CLASSES = {"d/train/cat": 10, "d/train/dog": 10, "d/test/cat": 2}
IMAGES = {
    f"{name}/{n}.png": image(n, mode="RGB")
    for name, count in CLASSES.items()
    for n in range(count)
}
CSV = "text,label\n" + "".join(f"film {n},{'ab'[n % 2]}\n" for n in range(40))


def encoder(**config: Any) -> Given:
    def write(folder: Path) -> None:
        files({"t.csv": CSV, "e/config.json": json.dumps(CONFIG | config)})(folder)
        save_file(bert_tensors(), folder / "e/model.safetensors")
        word_tokenizer(WORDS).save(str(folder / "e/tokenizer.json"))

    return write


# The words of `prepare`, a word of the error besides the root, and the files.
PREPARE = [
    ("video --from d", "grey", pictures(THREE, black=True)),
    (
        "video --from d",
        "control characters",
        pictures({"d/a\x1b[31m": 20, "d/b c": 20, "d/c": 20}),
    ),
    (
        "image_folder --from d",
        "cat/3.png",
        files(IMAGES | {"d/train/cat/3.png": bomb()}),
    ),
    ("cifar10 --from d", "", files({"d": b"\x1f\x8b" + bytes(50)})),
    (
        "table --from t.csv",
        "separated by commas",
        files({"t.csv": CSV.replace(",", ";")}),
    ),
]
ENCODER = (
    "run text-encoder --model.pretrained e --max-length 12 --data.source table"
    " --data.root t.csv"
)
FILE = both(pictures(THREE), files({"p": "a file"}))
RUNS = [
    (ENCODER, "--model.pretrained=e", files({"t.csv": CSV, "e": "a file"})),
    (ENCODER, "num_layers=1000000000", encoder(num_hidden_layers=10**9)),
    (ENCODER, "NaN", encoder(layer_norm_eps=float("nan"))),
    (
        "run video-ut --data.source video --data.root d --batch-size 101",
        "--batch-size",
        pictures(THREE),
    ),
    (
        "run text-ut --data.source table --data.root t.csv --min-count 100",
        "--min-count 100",
        files({"t.csv": CSV}),
    ),
    (
        "run video-ut --data.source video --data.root d --data.prepared p",
        "p: File exists",
        FILE,
    ),
]
COMMANDS = [
    *(
        Command(f"prepare {line}", (line.rpartition(" ")[2], word), given)
        for line, word, given in PREPARE
    ),
    *(
        Command(f"{line} --out runs/x", (word,), given, gone=("runs",))
        for line, word, given in RUNS
    ),
]
