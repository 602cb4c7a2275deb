"""Texts and labels with something wrong inside: each is told with its file and line, and nothing is prepared."""

import pytest

from unroll_jax.train.config.data import TextConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.text import load

GOOD = [("warm and dry", "sun"), ("a gale", "wind"), ("heavy showers", "rain")] * 12
HEADER = "text\tlabel\n"
SST2 = {f"{name}.tsv": "sentence\tlabel\nfine\t1\ndull\t0\n" for name in ("train", "dev", "test")}
PAIR = '{"sentence1": "It rains.", "sentence2": "It is wet.", "gold_label": "neutral"}\n'
MNLI = {"multinli_1.0_train.jsonl": PAIR, "multinli_1.0_dev_matched.jsonl": PAIR}
DEV = "multinli_1.0_dev_matched.jsonl"
REVIEWS = {f"{split}/{stars}.txt": "words" for split in ("train", "test") for stars in ("neg/0_3", "pos/0_9")}
REVIEWS = {f"aclImdb/{name}": text for name, text in REVIEWS.items()}
FOLDER, LINK = object(), object()
BAD = {
    "fields of TSV all empty": (
        "table",
        {"t.tsv": f"{HEADER}a\tx\n\n\t\nb\ty\n"},
        r"t.tsv line 4: 'label' must be the name",
    ),
    "fields of CSV all empty": (
        "table",
        {"t.csv": "text,label\na,x\n\n,\n"},
        r"t.csv line 4: 'label' must be the name",
    ),
    "fields of SST-2 all empty": ("sst2", {**SST2, "dev.tsv": f"{SST2['dev.tsv']}\t\n"}, "dev.tsv line 4 has an empty"),
    "half a character": (
        "table",
        {"t.jsonl": '{"text": "\\ud83d", "label": 1}'},
        r"t.jsonl line 1: 'text' has a lone surrogate",
    ),
    "half a label": (
        "table",
        {"t.jsonl": '{"text": "a", "label": "\\udfff"}'},
        r"line 1: 'label' has a lone surrogate, '\\udfff'",
    ),
    "half of a pair": (
        "mnli",
        {**MNLI, DEV: PAIR + PAIR.replace("wet", "\\udc00")},
        r"line 2: 'sentence2' has a lone surrogate",
    ),
    "label of a pair": (
        "mnli",
        {**MNLI, DEV: PAIR.replace("neutral", "\\udc00")},
        r"line 1: 'gold_label' has a lone surrogate",
    ),
    "breaks in capitals": ("imdb", {**REVIEWS, "aclImdb/test/pos/1_8.txt": "<BR />"}, r"pos/1_8.txt has an empty text"),
    "a pair of breaks": ("mnli", {**MNLI, DEV: PAIR.replace("It rains.", "<BR>")}, "matched.jsonl holds no labelled"),
    "a link that leads nowhere": (
        "imdb",
        {**REVIEWS, "aclImdb/train/neg/5_2.txt": LINK},
        r"train/neg/5_2.txt cannot be read \(No such file",
    ),
    "a folder": (
        "imdb",
        {**REVIEWS, "aclImdb/train/neg/1_1.txt": FOLDER},
        r"'train/neg/1_1.txt' is not a regular file",
    ),
    "two columns missing": (
        "table",
        {"t.tsv": "a\tb\n"},
        r"line 1 has no columns 'text', 'label'; its columns are 'a', 'b'",
    ),
    "many columns": (
        "table",
        {"t.csv": ",".join(f"c{n}" for n in range(30))},
        r"its columns are 'c0', .* 'c9' and more$",
    ),
    "no header": (
        "table",
        {"t.tsv": "a gale\twind\nheavy showers\train\n"},
        r"line 1 has no columns 'text', 'label'; its columns are 'a gale', 'wind'",
    ),
    "no header of a published file": ("sst2", {**SST2, "dev.tsv": "fine\t1\n"}, r"its columns are 'fine', '1'$"),
    "header again": ("table", {"t.csv": "text,label\na,x\nb,y\ntext,label\n"}, r"line 4 repeats the header"),
    "zero bytes": ("table", {"t.csv": "text,label\na,x\nb\0,y\n"}, r"t.csv is not UTF-8 text: .* zero byte in line 3"),
    "UTF-16 without a mark": ("table", {"t.csv": "t\0e\0x\0t\0"}, r"a zero byte in line 1; convert the file"),
    "a split of another name": (
        "table",
        {"train.tsv": f"{HEADER}a\tx\nb\ty\n", "test_set.tsv": HEADER},
        r"'test_set.tsv' looks like test, but is not read; give",
    ),
    "one text": (
        "table",
        {"t.csv": "text,label\n" + "a,x\na,y\n" * 30},
        r"data.root=.*: all texts of train are th",
    ),
    "one number twice": ("table", {"t.tsv": f"{HEADER}a\t1\nb\t01\n"}, r"train has the labels 01 and 1, one number"),
    "one fraction twice": ("table", {"t.tsv": f"{HEADER}a\t1.50\nb\t1.5\n"}, r"train has the labels 1.5 and 1.50"),
}


def written(root, files):
    """The folder of files, or the only one."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if content is FOLDER:
            (root / name).mkdir()
        elif content is LINK:
            (root / name).symlink_to(root / "nowhere")
        else:
            (root / name).write_text(content)
    return str(root / next(iter(files))) if len(files) == 1 else str(root)


@pytest.mark.parametrize(("source", "files", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_inside_is_told_in_one_line_and_nothing_is_left(tmp_path, source, files, message):
    root = written(tmp_path / "files", files)
    with pytest.raises(UserError, match=message) as caught:
        load(TextConfig(source, root, str(tmp_path / "prepared")), log=lambda line: None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "prepared").exists()


def table(tmp_path, rows, log=lambda line: None):
    lines = ["text,label", *(",".join(row) for row in rows)]
    return load(
        TextConfig("table", written(tmp_path, {"t.csv": "\n".join(lines)}), str(tmp_path / "prepared")), log=log
    )


@pytest.mark.parametrize(
    ("labels", "in_order"),
    [
        (("10.0", "2.0", "-1.0"), ("-1.0", "2.0", "10.0")),
        (("9" * 5000, "1" + "0" * 5000, "8"), ("8", "9" * 5000, "1" + "0" * 5000)),
        (("10", "9", "many"), ("10", "9", "many")),
    ],
    ids=["fractions", "long", "names"],
)
def test_labels_that_are_numbers_are_put_in_order_by_value(tmp_path, labels, in_order):
    rows = [(f"text {number}", labels[number % 3]) for number in range(36)]
    assert table(tmp_path, rows).class_names == in_order


def test_texts_in_both_of_two_splits_that_were_cut_from_one_file_are_said_to_be_so(tmp_path):
    lines: list[str] = []
    table(tmp_path, GOOD, log=lines.append)
    assert "  3 text(s) occur in both train and test; they are kept, the original has them more than once" in lines
