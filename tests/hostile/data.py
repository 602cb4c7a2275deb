"""Videos, images, texts, word vectors and encoders meant to break what reads them: a line that names the root."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.data.pretrained.conftest import CONFIG, WORDS, bert_tensors, word_tokenizer
from tests.hostile.command import Command
from tests.hostile.given import Given, bomb, both, clips, cut, files, folders, image, link, pictures, tar, video

THREE = {"d/a": 20, "d/b": 20, "d/c": 20}
STEERING = ("a\nb", "a\x1b[31m", "a\x9b", "a\u202eb")  # names that would steer a terminal
FRAMES = {f"d/{clip}/{n}.png": image(n) for clip in "abc" for n in range(20)}
CLASSES = {"d/train/cat": 10, "d/train/dog": 10, "d/test/cat": 2}
IMAGES = {f"{name}/{n}.png": image(n, mode="RGB") for name, count in CLASSES.items() for n in range(count)}
PICKLE = b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."
CSV = "text,label\n" + "".join(f"film {n},{'ab'[n % 2]}\n" for n in range(40))
LARGE = "bert.embeddings.word_embeddings.weight"


def in_place(contents: dict[str, bytes], name: str, content: bytes) -> Given:
    """Files, one of which has another content."""
    return files({**contents, name: content})


def encoder(tensors: dict[str, np.ndarray] | None = None, **config: Any) -> Given:
    """A table, and a small BERT with another configuration or other tensors."""

    def write(folder: Path) -> None:
        files({"t.csv": CSV, "e/config.json": json.dumps(CONFIG | config)})(folder)
        save_file(bert_tensors() | (tensors or {}), folder / "e/model.safetensors")
        word_tokenizer(WORDS).save(str(folder / "e/tokenizer.json"))

    return write


def changed(name: str, content: str | bytes | None) -> Given:
    """The encoder with another file, or without it."""
    gone: Given = lambda folder: (folder / "e" / name).unlink()  # noqa: E731
    return both(encoder(), gone if content is None else files({f"e/{name}": content}))


# By the words of `prepare`: files that it refuses, and the word besides the root that it says of them.
PREPARE: dict[str, list[tuple[str, Given | None]]] = {
    "video --from d": [
        ("", None),
        ("", folders("d/train/a", "d/test/b")),
        ("", files({"d": "x"})),
        ("", link("d", "d")),
        ("'d/d'", both(clips(THREE), link("d/d", "../d"))),
        ("59", clips({"d": 59})),
        ("'e'", clips({**THREE, "d/e": 19})),
        ("test-hard", clips({"d/train/1": 20, "d/train/2": 20, "d/test/1": 20, "d/test-hard/1": 20})),
        ("train", clips({"d/train/test/1": 20, "d/train/1": 20})),
        ("grey", clips(THREE, black=True)),
        ("a/3.png", in_place(FRAMES, "d/a/3.png", b"")),
        ("a/3.png", in_place(FRAMES, "d/a/3.png", image(3)[:60])),
        ("a/3.png", in_place(FRAMES, "d/a/3.png", image(3, kind="GIF"))),
        ("I;16", in_place(FRAMES, "d/a/3.png", image(3, mode="I;16"))),
        ("9x9", in_place(FRAMES, "d/a/3.png", image(3, side=9))),
        *(("control characters", clips({f"d/{name}": 20, "d/b c": 20, "d/c": 20})) for name in STEERING),
    ],
    "video --from t.tar": [
        ("outside", tar("t.tar", {"../d/a/1.png": image()})),
        *(("control characters", tar("t.tar", {f"d/{name}/1.png": image()})) for name in STEERING),
        ("plain file", tar("t.tar", {"d/a/1.png": b""}, kind=tarfile.SYMTYPE)),
        ("plain file", tar("t.tar", {"d/a/1.png": b""}, kind=tarfile.CHRTYPE)),
        ("", tar("t.tar", {})),
        ("", both(tar("t.tar", FRAMES), cut("t.tar", 0.7))),
    ],
    "video --from v.avi": [
        ("", files({"v.avi": b"RIFF" + bytes(100)})),
        ("59", video("v.avi", 59)),
        ("v.avi", both(video("v.avi", 90), cut("v.avi", 0.02))),
        ("grey", video("v.avi", 65, black=True)),
    ],
    "image_folder --from d": [
        ("", folders("d/train/cat", "d/test/cat")),
        ("train", pictures({"d/cat": 10, "d/dog": 10})),
        ("test_set", pictures({"d/train/cat": 10, "d/train/dog": 10, "d/test_set/cat": 2})),
        ("cat", pictures({"d/train/cat": 10, "d/test/cat": 2})),
        ("cow", pictures({"d/train/cat": 10, "d/train/dog": 10, "d/val/cat": 1, "d/test/cow": 2})),
        ("colour", files({name: image(None, mode="RGB") for name in IMAGES})),
        ("cat/3.png", in_place(IMAGES, "d/train/cat/3.png", bomb())),
        ("9x9", in_place(IMAGES, "d/train/cat/3.png", image(3, mode="RGB", side=9))),
        ("cow", both(files(IMAGES), link("d/train/cow", ".."))),
    ],
    "cifar10 --from d": [
        ("data_batch_1.bin", folders("d")),
        ("data_batch_2.bin", files({"d/data_batch_1.bin": (bytes([3]) + bytes(3072)) * 20})),
        ("pickles", files({"d/data_batch_1": PICKLE})),
        ("", files({"d": b"\x1f\x8b" + bytes(50)})),
    ],
    "camvid --from d": [
        ("trainannot", files({f"d/{split}/{n}.png": image(n, mode="RGB") for split in ("train", "val", "test")
                              for n in range(2)})),
    ],
    "table --from t.csv": [
        ("", None),
        ("", files({"t.csv": ""})),
        ("", files({"t.csv": "text,label\n"})),
        ("UTF-8", files({"t.csv": CSV.encode("utf-16")})),
        ("line 42", files({"t.csv": CSV + '"open,a\n'})),
        ("line 42", files({"t.csv": CSV + "one,two,three\n"})),
        ("'text'", files({"t.csv": "text,text,label\na,b,c\n"})),
        ("separated by commas", files({"t.csv": CSV.replace(",", ";")})),
        ("one class", files({"t.csv": CSV.replace(",b", ",a")})),
    ],
    "table --from t.jsonl": [
        ("line 1", files({"t.jsonl": "[" * 100_000})),
        ("'text'", files({"t.jsonl": '{"text": 5, "label": 1}\n{"text": "b", "label": 2}\n'})),
        ("line 1", files({"t.jsonl": '{"text": "a", "label": NaN}\n'})),
    ],
    "sst2 --from d": [("train.tsv", folders("d")), ("sentence", files({f"d/{name}.tsv": "fine\t1\n" for name in
                                                                     ("train", "dev", "test")}))],
}  # fmt: skip
ENCODER = "run text-encoder --model.pretrained e --max-length 12 --data.source table --data.root t.csv --out runs/x"
VECTORS = "run text-ut --model.embeddings v.txt --data.source table --data.root t.csv --out runs/x"
ENCODERS: list[tuple[str, Given]] = [
    ("config.json", both(files({"t.csv": CSV}), folders("e"))),
    ("--model.pretrained e", files({"t.csv": CSV, "e": "a file"})),
    ("e/config.json", changed("config.json", b"\xff\xfe{")),
    ("e/config.json", changed("config.json", "[" * 100_000)),
    ("vocab_size", changed("config.json", '{"model_type": "bert"}')),
    ("model_type='t5'", encoder(model_type="t5")),
    ("hidden_size", encoder(hidden_size=-8)),
    ("num_heads", encoder(num_attention_heads=3)),
    ("num_layers=1000000000", encoder(num_hidden_layers=10**9)),
    ("vocab_size=1000000000000", encoder(vocab_size=10**12)),
    ("NaN", encoder(layer_norm_eps=float("nan"))),
    (LARGE.removeprefix("bert."), encoder({LARGE: np.full((20, 8), np.nan, np.float32)})),
    ("(20, 7)", encoder({LARGE: np.zeros((20, 7), np.float32)})),
    ("tokenizer.json", changed("tokenizer.json", None)),
    ("model.safetensors", changed("model.safetensors", None)),
    ("pytorch_model.bin", both(changed("model.safetensors", None), files({"e/pytorch_model.bin": PICKLE}))),
    ("safetensors", changed("model.safetensors", PICKLE)),
    ("safetensors", both(encoder(), cut("e/model.safetensors", 0.5))),
    ("tokenizer", changed("tokenizer.json", "{}")),
]
WORD_VECTORS = [
    "",
    "film\n",
    "film 1 nan\n",
    "film 1 two\n",
    "film 1 2\nb 1\n",
    "zzz 1 2\n",
    "film 0 0\n",
    b"caf\xe9 1 2\n",
]
FITS = [
    ("run video-ut --data.source video --data.root d --batch-size 101", "--batch-size", clips(THREE)),
    ("run image-dnn --data.source image_folder --data.root d --batch-size 19", "--batch-size", files(IMAGES)),
    ("run image-dnn --data.source image_folder --data.root d --train-examples 19", "--train-examples", files(IMAGES)),
    ("run text-ut --data.source table --data.root t.csv --min-count 100", "--min-count 100", files({"t.csv": CSV})),
    ("run text-ut --data.source table --data.root t.csv --data.text-column x", "'x'", files({"t.csv": CSV})),
    ("run video-ut --data.source video --data.root d --data.prepared p", "--data.prepared",
     both(clips(THREE), files({"p": "a file"}))),
]  # fmt: skip
RIGHT = [
    ("prepare video --from d", "clips: 1 (testing/1)",
     clips({"d/TRAINING/1": 20, "d/training/2": 20, "d/testing/1": 20})),
    ("prepare video --from t.tar", "clips: 1 (d/a)", tar("t.tar", FRAMES)),
    ("prepare image_folder --from d", "train: 18 images of 8 x 8 x 3",
     in_place(IMAGES, "d/train/cat/3.png", image(3, mode="CMYK", kind="JPEG"))),
    ("prepare table --from t.csv", "train: 32 texts", files({"t.csv": b"\xef\xbb\xbf" + CSV.encode()})),
]  # fmt: skip
COMMANDS = [
    *(
        Command(f"prepare {line}", (line.rpartition(" ")[2], word), given, gone=("owned",))
        for line, rows in PREPARE.items()
        for word, given in rows
    ),
    *(Command(ENCODER, (word,), given, gone=("runs", "owned")) for word, given in ENCODERS),
    *(
        Command(VECTORS, ("--model.embeddings v.txt",), files({"t.csv": CSV, "v.txt": content}), gone=("runs",))
        for content in WORD_VECTORS
    ),
    *(Command(f"{line} --out runs/x", (word,), given, gone=("runs",)) for line, word, given in FITS),
    *(Command(line, (word,), given, code=0) for line, word, given in RIGHT),
]
