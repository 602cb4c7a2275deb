"""Texts from MultiNLI and from tables of the user's, and the choice of a source."""

import json
import re
import typing
import zipfile

import numpy as np
import pytest

from unroll_jax.train.__main__ import main
from unroll_jax.train.config.data import TextConfig, TextSource
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.published_texts import IMDB_DOWNLOAD
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.text import TEXTS, load

ROWS = [('warm, "dry" and\tcalm', "sun"), ("a gale", "wind"), ("heavy showers", "rain")] * 12
PAIRS = [("It rains.", "It is wet.", "entailment"), ("It rains.", "It is dry.", "contradiction")] * 10
PAIRS += [("It rains.", "I like it.", "neutral")] * 10


@pytest.fixture
def opened(tmp_path):
    def open_config(*arguments, log=lambda line: None, **options):
        return load(TextConfig(*arguments, prepared=str(tmp_path / "prepared"), **options), log=log)

    return open_config


def everything(data, split):
    return data.read(split, range(data.num_examples(split)))


def records(data, split):
    texts, labels, seconds = everything(data, split)
    names = [data.class_names[label] for label in labels]
    return list(zip(texts, *([seconds] if seconds else []), names, strict=True))


def test_config_and_command_line_offer_exactly_the_sources_of_the_table():
    assert typing.get_args(TextSource) == tuple(TEXTS)
    assert typing.get_args(typing.get_type_hints(TextConfig)["source"]) == tuple(TEXTS)


def write(path, rows, columns=("text", "label")):
    """Writes a table in the format that its name tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    elif path.suffix == ".csv":
        lines = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in [columns, *rows]]
    else:
        lines = ["\t".join(field.replace("\t", " ") for field in row) for row in [columns, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def mnli(tmp_path):
    root = tmp_path / "mnli"
    columns = ("sentence1", "sentence2", "gold_label")
    write(
        root / "multinli_1.0_train.jsonl", [*PAIRS, ("It rains.", "Really?", "-"), ("", "Empty.", "neutral")], columns
    )
    write(
        root / "multinli_1.0_dev_matched.jsonl",
        [*PAIRS[::7], ("a", "b", "-"), ("a", "c", "-"), ("<BR />", "a", "neutral")],
        columns,
    )
    return root


@pytest.mark.parametrize("packed", [False, True])
def test_mnli_has_pairs_in_three_classes_and_leaves_out_what_has_no_gold_label(mnli, opened, tmp_path, packed):
    if packed:
        with zipfile.ZipFile(tmp_path / "multinli_1.0.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in mnli.iterdir():
                archive.write(file, f"multinli_1.0/{file.name}")
                archive.writestr(f"__MACOSX/multinli_1.0/._{file.name}", b"\x00\xff")
    lines: list[str] = []
    data = opened("mnli", str(tmp_path / "multinli_1.0.zip" if packed else mnli), log=lines.append)
    assert data.class_names == ("entailment", "neutral", "contradiction")
    assert records(data, "test") == PAIRS[::7]
    assert sorted(records(data, "train") + records(data, "validation")) == sorted(PAIRS)
    assert [data.num_examples(split) for split in SPLITS] == [27, 3, 5]
    assert "  train: leaving out 1 record(s) that have no gold label ('-')" in lines
    assert "  train: leaving out 1 record(s) that have an empty sentence" in lines
    assert "  test: leaving out 2 record(s) that have no gold label ('-')" in lines
    assert "  test: leaving out 1 record(s) that have an empty sentence" in lines


def drop(name):
    return lambda root: (root / name).unlink()


def append(name, line):
    def spoil(root):
        with (root / name).open("ab") as file:
            file.write(line)

    return spoil


TRAIN, DEV = "multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl"
BAD_MNLI = {
    "no train": (drop(TRAIN), rf"holds no {re.escape(TRAIN)}; give the folder of"),
    "no dev": (drop(DEV), rf"holds no {re.escape(DEV)}; give the folder of"),
    "label": (append(TRAIN, b'{"sentence1": "a", "sentence2": "b", "gold_label": "maybe"}\n'), r"line 33 .* 'maybe'"),
    "number": (append(TRAIN, b'{"sentence1": 1, "sentence2": "b", "gold_label": "neutral"}\n'), r"line 33: .* texts"),
    "column": (append(DEV, b'{"sentence1": "a", "gold_label": "neutral"}\n'), r"line 9 has no column 'sentence2'"),
    "cut": (append(DEV, b'{"sentence1": "a", "sent'), r"dev_matched.jsonl line 9 cannot be read as JSON"),
    "no object": (append(DEV, b"[1]\n"), r"line 9 is not a JSON object with 'sentence1', 'sentence2', 'gold_label'"),
    "not UTF-8": (append(TRAIN, b'{"sentence1": "\xff"}\n'), r"train.jsonl is not UTF-8: byte 0xff in line 33"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_MNLI.values(), ids=BAD_MNLI)
def test_bad_mnli_files_are_told_in_one_line(mnli, opened, tmp_path, spoil, message):
    spoil(mnli)
    with pytest.raises(UserError, match=message) as caught:
        opened("mnli", str(mnli))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "prepared").rglob("*.array_record*")), "an error leaves nothing prepared"


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_tables_are_read_as_written_with_the_classes_of_train(opened, tmp_path, suffix):
    rows = [(text.replace("\t", " ") if suffix == "tsv" else text, label) for text, label in ROWS]
    for name, part in (("train", rows[:-6]), ("val", rows[-6:-3]), ("test", rows[-3:])):
        write(tmp_path / "table" / f"{name}.{suffix}", part)
    data = opened("table", str(tmp_path / "table"))
    assert data.class_names == ("rain", "sun", "wind")
    actual = {split: records(data, split) for split in SPLITS}
    assert actual == {"train": rows[:-6], "validation": rows[-6:-3], "test": rows[-3:]}


def test_columns_have_the_names_that_the_user_says_and_whole_numbers_are_in_order(opened, tmp_path):
    rows = [(f"premise {number}", f"claim {number}", number % 11, "x") for number in range(88)]
    write(tmp_path / "table.jsonl", rows, ("premise", "claim", "stars", "who"))
    columns = {"text_column": "premise", "label_column": "stars", "second_column": "claim"}
    data = opened("table", str(tmp_path / "table.jsonl"), validation_share=0.25, **columns)
    assert data.class_names == tuple(map(str, range(11)))
    assert data.pairs
    actual = [record for split in SPLITS for record in records(data, split)]
    assert sorted(actual) == sorted((premise, claim, str(stars)) for premise, claim, stars, _ in rows)
    first = opened(
        "table", str(tmp_path / "table.jsonl"), text_column="claim", label_column="stars", validation_share=0.25
    )
    assert not first.pairs
    assert everything(first, "test").texts[0].startswith("claim")


def test_a_single_file_gives_all_three_splits(opened, tmp_path):
    lines: list[str] = []
    data = opened("table", str(write(tmp_path / "all.csv", ROWS)), log=lines.append)
    assert [data.num_examples(split) for split in SPLITS] == [29, 3, 4]
    assert "  no test file: holding out 4 of 36 texts for it" in lines


def test_lines_may_end_as_on_other_systems_and_quoted_fields_may_hold_line_breaks(opened, tmp_path):
    rows = "".join(f'"first\r\nsecond, {number}",{"ab"[number % 2]}\r\n' for number in range(40))
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbftext,label\r\n" + rows.encode() + b"\r\n")
    texts = everything(opened("table", str(tmp_path / "t.csv")), "train").texts
    assert all(re.fullmatch(r"first\r\nsecond, \d+", text) for text in texts)


def test_other_columns_are_prepared_apart(opened, tmp_path):
    path = write(
        tmp_path / "t.jsonl", [(text, f"not {text}", label) for text, label in ROWS], ("text", "other", "label")
    )
    assert everything(opened("table", str(path)), "train").texts[0] in dict(ROWS)
    assert everything(opened("table", str(path), text_column="other"), "train").texts[0].startswith("not ")


GOOD = "".join(f"text {number}\t{'ab'[number % 2]}\n" for number in range(40))
BAD_TABLES = {
    "no column": (
        "t.tsv",
        f"words\tlabel\n{GOOD}",
        r"t.tsv line 1 has no column 'text'; its columns are 'words', 'lab",
    ),
    "no label column": ("t.csv", "text\na\n", r"t.csv line 1 has no column 'label'; its columns are 'text'"),
    "two columns of a name": ("t.tsv", f"text\ttext\tlabel\n{GOOD}", r"line 1 names the column 'text' twice"),
    "no column in JSON": (
        "t.jsonl",
        '{"text": "a"}\n',
        r"t.jsonl line 1 has no column 'label'; its columns are 'text'",
    ),
    "empty text": ("t.tsv", f"text\tlabel\n{GOOD} \tb\n", r"t.tsv line 42 has an empty text"),
    "empty text in CSV": ("t.csv", 'text,label\n"a\nb",c\n"",d\n', r"t.csv line 4 has an empty text"),
    "no text": ("t.jsonl", '{"text": null, "label": 1}\n{"text": "b", "label": 2}\n', r"line 1: 'text' must be a text"),
    "empty label": ("t.tsv", f"text\tlabel\n{GOOD}c\t \n", r"line 42: 'label' must be the name or number of a class"),
    "label no class": ("t.jsonl", '{"text": "a", "label": [1]}\n', r"line 1: 'label' must be the name .* got \[1\]"),
    "one class": ("t.tsv", "text\tlabel\na\tx\nb\tx\n", r"texts of one class only \(x\)"),
    "few fields": ("t.tsv", f"text\tlabel\n{GOOD}c\n", r"t.tsv line 42 has 1 field\(s\), the header has 2"),
    "open quote": ("t.csv", 'text,label\na,x\n"b,x\n', r"t.csv line 3 cannot be read as CSV"),
    "not UTF-8": ("t.csv", b"text,label\na,x\ncr\xe8me,x\n", r"t.csv is not UTF-8: byte 0xe8 in line 3"),
    "empty file": ("t.csv", "", r"t.csv is empty; it must begin with a header that has 'text', 'label'"),
    "no rows": ("t.tsv", "text\tlabel\n", r"t.tsv has no rows"),
    "another kind": ("t.xlsx", b"PK", r"t.xlsx ends in none of .tsv, .csv, .jsonl"),
    "few of a class": (
        "t.tsv",
        f"text\tlabel\n{GOOD}one\tc\n",
        r"validation_share=0.1 cannot be cut .* single example",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables_are_told_in_one_line(opened, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        opened("table", str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_label_that_train_does_not_have_is_told_with_file_and_line(opened, tmp_path):
    write(tmp_path / "table/train.csv", ROWS)
    write(tmp_path / "table/test.csv", [*ROWS[:2], ("fog", "fog")])
    with pytest.raises(UserError, match=r"test.csv line 4 has label 'fog', .* its classes are rain, sun, wind"):
        opened("table", str(tmp_path / "table"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), r"holds no train file"),
        (("train.csv", "train.tsv"), r"holds train.tsv and train.csv; keep one"),
        (("train.csv", "dev.csv", "val.csv"), r"holds val.csv and dev.csv; keep one"),
    ],
)
def test_a_folder_of_tables_must_say_which_is_which(opened, tmp_path, files, message):
    (tmp_path / "table").mkdir()
    for name in files:
        write(tmp_path / "table" / name, ROWS)
    with pytest.raises(UserError, match=message):
        opened("table", str(tmp_path / "table"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "table"}, r"data.source=table needs data.root: a TSV, CSV or JSONL file"),
        ({"source": "verdicts", "root": "/tmp"}, r"data.source=verdicts takes no data.root"),
        ({"source": "sst2", "root": "/nowhere"}, r"data.root=/nowhere does not exist; give the folder of SST-2"),
        ({"source": "mnli", "root": "/nowhere"}, r"data.root=/nowhere does not exist; give the folder of multinli"),
        ({"source": "imdb", "root": "/nowhere"}, r"data.root=/nowhere does not exist; give the folder aclImdb"),
        ({"source": "table", "root": "/nowhere"}, r"data.root=/nowhere does not exist; give a TSV"),
        ({"source": "verdicts", "label_column": "x"}, r"data.label_column=x is for data.source=table"),
        ({"source": "table", "root": ".", "second_column": "text"}, r"columns .* must differ, got text, label, text"),
        ({"source": "verdicts", "validation_share": 1.0}, r"data.validation_share must be in \(0, 1\), got 1.0"),
        ({"source": "novels"}, r"data.source=novels is unknown; choose one of verdicts, imdb, sst2, mnli, table"),
    ],
)
def test_a_choice_that_cannot_be_is_told_in_one_line(opened, options, message):
    with pytest.raises(UserError, match=message) as caught:
        opened(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["imdb", "sst2", "mnli"])
def test_the_published_archives_have_checksums_to_download_by(source):
    download = TEXTS[source].download
    assert download is not None
    assert re.fullmatch("[0-9a-f]{12}", download.fingerprint)
    assert IMDB_DOWNLOAD.known is not None  # TFDS's own list of known files lacks it


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prepare", "table"], "prepare table needs --from"),
        (["prepare", "sst2", "--from", "nowhere"], "nowhere does not exist"),
        (
            ["prepare", "digits", "--label-column", "stars"],
            "--label-column stars has no effect without the source",
        ),
    ],
)
def test_prepare_tells_a_mistake_in_one_line(capsys, arguments, words):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_prepare_knows_texts_and_their_columns(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    path = write(tmp_path / "t.csv", ROWS, ("words", "weather"))
    columns = ["--text-column", "words", "--label-column", "weather"]
    assert main(["prepare", "table", "--from", str(path), *columns]) == 0
    assert "train: 29 texts, rain: " in capsys.readouterr().out
    assert np.all([folder.name.startswith("table-") for folder in (tmp_path / "prepared").iterdir()])
