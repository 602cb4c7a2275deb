"""Texts of SST-2, IMDB, MultiNLI and tables: the records, splits and batches of
each."""

import json
import re
import zipfile

import numpy as np
import pytest

from tests.data.conftest import pack
from tests.data.conftest import write as write_files
from unroll_jax.train.data.files import SPLITS

SENTENCES = {
    "train": [
        ("a gripping film .", 1),
        ("dull", 0),
        ('"unbalanced quote', 0),
        ("a\u2028line separator", 1),
    ],
    "dev": [("crème brûlée", 1)],
    "test": [("dull", 0), ("fine", 1)],
}
NEGATIVE = {
    "0_3": "A waste.<br /><br />Really.",
    "9_4": "Bad.",
    "10_1": "Worse.",
    "11_1": "Awful.",
}
POSITIVE = {"0_9": "Great — truly.", "1_8": "Good.", "2_7": "Fine.", "10_7": "Nice."}
REVIEWS = {
    "train/unsup/0_0": "No label.",
    "test/neg/2_2": "Bad.",
    "test/pos/1_10": "Superb.",
}
REVIEWS |= {f"train/neg/{name}": text for name, text in NEGATIVE.items()}
REVIEWS |= {f"train/pos/{name}": text for name, text in POSITIVE.items()}
ROWS = [
    ('warm, "dry" and\tcalm', "sun"),
    ("a gale", "wind"),
    ("heavy showers", "rain"),
] * 12
PAIRS = [
    ("It rains.", "It is wet.", "entailment"),
    ("It rains.", "It is dry.", "contradiction"),
] * 10
PAIRS += [("It rains.", "I like it.", "neutral")] * 10


def sizes(data):
    return [data.num_examples(split) for split in SPLITS]


def records(data, split):
    texts, labels, seconds = data.whole(split)
    names = [data.class_names[label] for label in labels]
    return list(zip(texts, *([seconds] if seconds else []), names, strict=True))


def write(path, rows, columns=("text", "label")):
    kind, table = path.suffix.lower(), [columns, *rows]
    if kind == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    elif kind == ".csv":
        quoted = lambda field: '"' + field.replace('"', '""') + '"'
        lines = [",".join(map(quoted, row)) for row in table]
    else:
        plain = lambda field: str(field).replace("\t", " ")
        lines = ["\t".join(map(plain, row)) for row in table]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def sst2(tmp_path):
    for split, rows in SENTENCES.items():
        write(tmp_path / f"data/glue/SST-2/{split}.tsv", rows, ("sentence", "label"))
    return tmp_path / "data"


def test_sst2_is_read_as_written(opened, sst2):
    lines: list[str] = []
    data = opened("sst2", sst2, lines.append)
    assert data.class_names == ("negative", "positive")
    for split, name in zip(SPLITS, SENTENCES, strict=True):
        texts, labels, seconds = data.whole(split)
        assert (list(zip(texts, labels.tolist(), strict=True)), seconds) == (
            SENTENCES[name],
            None,
        )
    assert any("1 text(s) occur in both train and test" in line for line in lines)


def test_sst2_without_test_labels_is_tested_on_dev(opened, sst2):
    folder = sst2 / "glue/SST-2"
    write(folder / "test.tsv", [("0", "dull"), ("1", "fine")], ("index", "sentence"))
    write(
        folder / "train.tsv",
        [(f"sentence {number}", number % 2) for number in range(16)],
        ("sentence", "label"),
    )
    data = opened("sst2", folder, validation_share=0.25)
    assert (data.whole("test").texts, sizes(data)) == (["crème brûlée"], [12, 4, 1])
    kept, held_out = (data.whole(split).texts for split in SPLITS[:2])
    assert sorted(kept + held_out) == sorted(
        f"sentence {number}" for number in range(16)
    )


def test_imdb_has_the_records_of_its_archive(opened, tmp_path):
    files = {f"{name}.txt": text for name, text in REVIEWS.items()}
    archive = pack(write_files(tmp_path / "aclImdb", files), "w:gz", reverse=True)
    data = opened("imdb", archive, validation_share=0.25)
    train, validation, test = (data.whole(split) for split in SPLITS)
    assert [
        text
        for text in (*NEGATIVE.values(), *POSITIVE.values())
        if text not in validation.texts
    ] == train.texts
    assert (validation.labels.tolist(), train.labels.tolist()) == (
        [0, 1],
        [0] * 3 + [1] * 3,
    )
    assert (test.texts, test.labels.tolist()) == (["Bad.", "Superb."], [0, 1])


def test_mnli_has_pairs_in_three_classes_of_gold_labels(opened, tmp_path):
    root, columns = tmp_path / "mnli", ("sentence1", "sentence2", "gold_label")
    unusable = [("It rains.", "Really?", "-"), ("", "Empty.", "neutral")]
    write(root / "multinli_1.0_train.jsonl", [*PAIRS, *unusable], columns)
    write(
        root / "multinli_1.0_dev_matched.jsonl",
        [*PAIRS[::7], ("<BR />", "a", "neutral")],
        columns,
    )
    packed = tmp_path / "multinli_1.0.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in root.iterdir():
            archive.write(file, f"multinli_1.0/{file.name}")
            archive.writestr(f"__MACOSX/multinli_1.0/._{file.name}", b"\x00\xff")
    lines: list[str] = []
    data = opened("mnli", packed, lines.append)
    assert (data.class_names, data.pairs) == (
        ("entailment", "neutral", "contradiction"),
        True,
    )
    assert records(data, "test") == PAIRS[::7]
    assert sorted(records(data, "train") + records(data, "validation")) == sorted(PAIRS)
    for split, count in (("train", 2), ("test", 1)):
        assert any(f"{split}: leaving out {count} record(s)" in line for line in lines)


@pytest.mark.parametrize("name", ["{}.tsv", "{}.CSV", "{}.Jsonl"])
def test_tables_are_read_as_written(opened, tmp_path, name):
    rows = ROWS
    if name == "{}.tsv":
        rows = [(text.replace("\t", " "), label) for text, label in ROWS]
    parts = {"TRAIN": rows[:-6], "val": rows[-6:-3], "test": rows[-3:]}
    for split, part in parts.items():
        write(tmp_path / "table" / name.format(split), part)
    for ignored in ("dataset_info.json", "._train.csv", "sample_submission.csv"):
        (tmp_path / "table" / ignored).write_text("no table")
    data = opened("table", tmp_path / "table")
    assert data.class_names == ("rain", "sun", "wind")
    assert [records(data, split) for split in SPLITS] == [*parts.values()]
    assert sum(sizes(opened("table", tmp_path / "table" / name.format("TRAIN")))) == 30


def test_columns_may_be_named_and_integers_are_in_order(opened, tmp_path):
    rows = [(f"review {number}", number % 11, "x") for number in range(88)]
    root = write(tmp_path / "table.jsonl", rows, ("review", "stars", "who"))
    data = opened(
        "table", root, text_column="review", label_column="stars", validation_share=0.25
    )
    assert data.class_names == tuple(map(str, range(11)))
    actual = [record for split in SPLITS for record in records(data, split)]
    assert sorted(actual) == sorted((review, str(stars)) for review, stars, _ in rows)


def test_quoted_fields_may_hold_line_breaks_of_other_systems(opened, tmp_path):
    rows = "".join(
        f'"first\r\nsecond, {number}",{"ab"[number % 2]}\r\n' for number in range(40)
    )
    content = "\ufefftext,label\r\n" + rows + "\r\n"
    (tmp_path / "t.csv").write_bytes(content.encode())
    texts = opened("table", tmp_path / "t.csv").whole("train").texts
    assert all(re.fullmatch(r"first\r\nsecond, \d+", text) for text in texts)


def test_labels_that_look_the_same_are_one_class(opened, tmp_path):
    labels = [
        "caf\u00e9",
        "cafe\u0301",
        "\ufeffcaf\u00e9",
        "caf\u00e9\u200b",
        "caf\u00e9\ufe0f",  # whose category is not Cf
        "caf\u00e9\u3164",
        "Bar",
        "bar",
        "1",
        "01",
    ]
    count = len(labels)
    rows = [f'text {row}, "{labels[row % count]}"\n' for row in range(10 * count)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    lines: list[str] = []
    data = opened("table", tmp_path / "t.csv", lines.append)
    assert data.class_names == ("01", "1", "Bar", "bar", "caf\u00e9")
    assert any("'Bar' and 'bar' look alike" in line for line in lines)
    assert any("'01' and '1' look alike" in line for line in lines)


def test_changed_originals_are_prepared_afresh_and_others_once(opened, sst2):
    opened("sst2", sst2)
    lines: list[str] = []
    batch = next(
        opened("sst2", sst2, lines.append).batches("train", batch_size=4, seed=5)
    )
    assert lines == []
    assert sorted(batch.texts) == sorted(sentence for sentence, _ in SENTENCES["train"])
    write(sst2 / "glue/SST-2/dev.tsv", [("other", 0)], ("sentence", "label"))
    assert opened("sst2", sst2).whole("validation").texts == ["other"]


@pytest.mark.data
def test_the_published_files_have_their_known_counts(real_data, opened):
    places = {
        "imdb": "imdb/aclImdb_labelled.tar.gz",
        "sst2": "glue/SST-2",
        "mnli": "mnli",
    }
    data = {name: opened(name, real_data / place) for name, place in places.items()}
    counts = {
        name: [np.bincount(each.whole(split).labels).tolist() for split in SPLITS]
        for name, each in data.items()
    }
    assert counts == {
        "imdb": [[11_250, 11_250], [1_250, 1_250], [12_500, 12_500]],
        "sst2": [[29_780, 37_569], [428, 444], [912, 909]],
        "mnli": [[895, 896, 909], [100, 99, 101], [2_681, 2_353, 2_435]],
    }
