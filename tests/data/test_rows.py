"""Texts and labels with something wrong inside: each fails with its file and line, and nothing is prepared."""

import io
import zipfile

import pytest

from unroll_jax.train.data.files import SPLITS

HEADER = "text\tlabel\n"
GOOD = HEADER + "".join(f"text {number}\t{'ab'[number % 2]}\n" for number in range(40))
SST2 = {f"{name}.tsv": "sentence\tlabel\nfine\t1\ndull\t0\n" for name in ("train", "dev", "test")}
PAIR = '{"sentence1": "It rains.", "sentence2": "It is wet.", "gold_label": "neutral"}\n'
TRAIN, DEV = "multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl"
MNLI = {TRAIN: PAIR, DEV: PAIR}
REVIEWS = {f"aclImdb/{split}/{stars}.txt": "words" for split in ("train", "test") for stars in ("neg/0_3", "pos/0_9")}
LINK = object()


def zipped(*, size=None, change=(b"", b"")):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in SST2.items():
            archive.writestr(f"SST-2/{name}", content)
    return packed.getvalue()[:size].replace(*change)


TABLES = {
    "empty fields of TSV": ("t.tsv", f"{HEADER}a\tx\n\n\t\nb\ty\n", r"t.tsv line 4: 'label' must be the name"),
    "empty fields of CSV": ("t.csv", "text,label\na,x\n\n,\n", r"t.csv line 4: 'label' must be the name"),
    "half a character": ("t.jsonl", '{"text": "\\ud83d", "label": 1}', r"line 1: 'text' has a lone surrogate"),
    "two columns missing": ("t.tsv", "a\tb\n", r"its columns are 'a', 'b'; name yours by data.text_column and "),
    "many columns": ("t.csv", ",".join(f"c{n}" for n in range(30)), r"are 'c0', .* 'c9' and more; name yours by"),
    "no column in JSON": ("t.jsonl", '{"text": "a"}\n', r"t.jsonl line 1 has no column 'label'; its columns are"),
    "a column twice": ("t.tsv", "text\ttext\tlabel\n", r"line 1 names the column 'text' twice"),
    "header again": ("t.csv", "text,label\na,x\nb,y\ntext,label\n", r"line 4 repeats the header"),
    "zero bytes": ("t.csv", "text,label\na,x\nb\0,y\n", r"t.csv is not UTF-8 text: .* zero byte in line 3"),
    "not UTF-8": ("t.csv", b"text,label\na,x\ncr\xe8me,x\n", r"t.csv is not UTF-8: byte 0xe8 in line 3"),
    "one text": ("t.csv", "text,label\n" + "a,x\na,y\n" * 30, r"data.root=.*: all texts of train are th"),
    "empty text in CSV": ("t.csv", 'text,label\n"a\nb",c\n"",d\n', r"t.csv line 4 has an empty text"),
    "no text": ("t.jsonl", '{"text": null, "label": 1}\n{"text": "b", "label": 2}\n', r"line 1: 'text' must be a text"),
    "label no class": ("t.jsonl", '{"text": "a", "label": [1]}\n', r"line 1: 'label' must be the name .* got \[1\]"),
    "one class": ("t.tsv", HEADER + "a\tx\nb\tx\n" * 15, r"train has texts of one class only \(x\)"),
    "few fields": ("t.tsv", f"{GOOD}c\n", r"t.tsv line 42 has 1 field\(s\), the header has 2"),
    "open quote": ("t.csv", 'text,label\na,x\n"b,x\n', r"t.csv line 3 cannot be read as CSV"),
    "empty file": ("t.csv", "", r"t.csv is empty; it must begin with a header that has 'text', 'label'"),
    "no rows": ("t.tsv", HEADER, r"t.tsv has no labelled texts"),
    "old lines of TSV": ("t.tsv", GOOD.replace("\n", "\r"), r"t.tsv ends its lines with carriage returns"),
    "old lines of CSV": ("t.csv", "text,label\ra,x\rb,y\r", r"t.csv ends its lines with carriage returns"),
    "another kind": ("t.xlsx", "PK", r"t.xlsx ends in none of .tsv, .csv, .jsonl"),
    "few of a class": ("t.tsv", f"{GOOD}one\tc\n", r"validation_share=0.1 cannot be cut .*'c' has a single"),
}
BAD = {name: ("table", {file: content}, message) for name, (file, content, message) in TABLES.items()} | {
    "another split": ("table", {"train.tsv": GOOD, "test_set.tsv": HEADER}, r"'test_set.tsv' looks like test under"),
    "no train": ("table", {"val.tsv": GOOD, "test.tsv": GOOD}, r"holds no train file"),
    "two train files": ("table", {"train.tsv": GOOD, "train.csv": ""}, r"holds train.csv and train.tsv; keep one"),
    "new label": ("table", {"train.tsv": GOOD, "test.tsv": f"{HEADER}fog\tc\n"}, r"test.tsv line 2 has label 'c'"),
    "no dev": ("sst2", {name: SST2[name] for name in ("train.tsv", "test.tsv")}, r"holds no dev\.tsv; give the folder"),
    "no header": ("sst2", {**SST2, "dev.tsv": "fine\t1\n"}, r"its columns are 'fine', '1'$"),
    "label": ("sst2", {**SST2, "train.tsv": "sentence\tlabel\na\t1\nb\t2\n"}, r"train\.tsv line 3 has label '2'"),
    "no sentences": ("sst2", {**SST2, "train.tsv": "sentence\tlabel\n"}, r"train\.tsv has no labelled texts"),
    "zip cut": ("sst2", {"SST-2.zip": zipped(size=-30)}, r"is neither a folder nor a whole tar or zip archive .*copy"),
    "zip changed": ("sst2", {"SST-2.zip": zipped(change=(b"dull", b"full"))}, r"archive \(Bad CRC-32"),
    "half of a pair": ("mnli", {**MNLI, DEV: PAIR + PAIR.replace("wet", "\\udc00")}, r"line 2: 'sentence2' has a lone"),
    "gold label": ("mnli", {**MNLI, TRAIN: PAIR.replace("neutral", "maybe")}, r"line 1 has gold_label 'maybe'"),
    "number": ("mnli", {**MNLI, TRAIN: PAIR.replace('"It rains."', "1")}, r"line 1: 'sentence1' must be a text, got 1"),
    "cut JSON": ("mnli", {**MNLI, DEV: PAIR[:20]}, r"dev_matched.jsonl line 1 is not valid JSON"),
    "no object": ("mnli", {**MNLI, DEV: "[1]\n"}, r"line 1 is not a JSON object with 'sentence1', 'sentence2', 'gold"),
    "breaks alone": ("mnli", {**MNLI, DEV: PAIR.replace("It rains.", "<BR>")}, "matched.jsonl has no labelled"),
    "no reviews": ("imdb", {"a/b.txt": "", "c.txt": ""}, r"holds no train/neg; give the folder aclImdb"),
    "a class lost": ("imdb", dict(list(REVIEWS.items())[:3]), r"no reviews aclImdb/test/pos"),
    "empty review": ("imdb", {**REVIEWS, "aclImdb/test/pos/1_8.txt": "<BR />"}, r"pos/1_8.txt has an empty text"),
    "dangling link": ("imdb", {**REVIEWS, "aclImdb/train/neg/5_2.txt": LINK}, r"5_2.txt cannot be read \(No such file"),
}


def written(root, files):
    """The folder of files, or the only one."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if content is LINK:
            (root / name).symlink_to(root / "nowhere")
        else:
            (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(root / next(iter(files))) if len(files) == 1 else str(root)


@pytest.mark.parametrize(("source", "files", "message"), BAD.values(), ids=BAD)
def test_bad_originals_fail_in_one_line_and_nothing_is_left(refused, tmp_path, source, files, message):
    refused(source, written(tmp_path / "files", files), message)


@pytest.mark.parametrize("name", ["t.CSV", "T.Tsv", "t.JSONL", "folder/TRAIN.CSV"])
def test_tables_are_known_by_their_suffix_in_any_case(opened, tmp_path, name):
    separator = "\t" if name.endswith("Tsv") else ","
    content = GOOD.replace("\t", separator)
    if name.endswith("JSONL"):
        content = "".join(f'{{"text": "text {n}", "label": "{"ab"[n % 2]}"}}\n' for n in range(40))
    path = tmp_path / written(tmp_path, {name: content})
    root = path.parent if name.startswith("folder") else path
    data = opened("table", root)
    assert sum(data.num_examples(split) for split in SPLITS) == 40


def test_texts_of_both_splits_that_were_cut_from_one_file_are_logged(opened, tmp_path):
    lines: list[str] = []
    rows = "".join(f"text {number % 3}\t{'abc'[number % 3]}\n" for number in range(36))
    opened("table", written(tmp_path, {"t.tsv": HEADER + rows}), lines.append)
    assert "  no test file: holding out 4 of 36 texts for it" in lines
    assert "  3 text(s) occur in both train and test; they are kept, the original has them more than once" in lines
