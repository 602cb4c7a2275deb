"""Tables and texts meant to break what reads them."""

import json

from tests.hostile.command import Command
from tests.hostile.given import both, cut, files, folders, link, named_in_latin_1, spoilt_zip, tar

ROWS = [(f"text {n}", "ab"[n % 2]) for n in range(40)]
CSV = "".join(f"{text},{label}\n" for text, label in ROWS)
TSV = CSV.replace(",", "\t")
HEAD = "text,label\n"
LINES = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
FROM = "prepare table --from t.csv"
RUN = "run text-ut --data.source table --data.root t.csv --out runs/x"
SST2 = {f"d/{name}.tsv": "sentence\tlabel\nfine\t1\ndull\t0\n" for name in ("train", "dev", "test")}
PAIR = '{"sentence1": "It rains.", "sentence2": "It is wet.", "gold_label": "neutral"}\n'
MNLI = {"d/multinli_1.0_train.jsonl": PAIR, "d/multinli_1.0_dev_matched.jsonl": PAIR}
REVIEWS = {f"d/{split}/{stars}.txt": "words" for split in ("train", "test") for stars in ("neg/0_3", "pos/0_9")}


def table(content: str | bytes, name: str = "t.csv"):
    return files({name: content})


COMMANDS = [
    Command("prepare table", ("prepare table needs --from",)),
    Command("prepare table --from nowhere.csv", ("--from nowhere.csv does not exist",)),
    Command("prepare table --from t.xlsx", ("t.xlsx ends in none of .tsv, .csv, .jsonl",), table("PK", "t.xlsx")),
    Command("prepare table --from t.csv.gz", ("ends in none of",), table("\x1f", "t.csv.gz")),
    Command(FROM, ("holds no train file",), folders("t.csv")),
    Command(FROM, ("does not exist",), link("t.csv", "t.csv")),
    Command(FROM, ("t.csv is empty",), table("")),
    Command(FROM, ("t.csv is empty",), table("\n\n\n")),
    Command(FROM, ("t.csv has no rows",), table(HEAD)),
    Command(FROM, ("train: 32 texts, a: 16, b: 16",), table(HEAD + CSV), code=0),
    Command(
        FROM,
        ("train: 32 texts, a: 16, b: 16",),
        table(b"\xef\xbb\xbf" + (HEAD + CSV).replace("\n", "\r\n").encode()),
        code=0,
    ),
    Command(FROM, ("line 1 cannot be read as CSV",), table((HEAD + CSV).replace("\n", "\r"))),
    Command(FROM, ("not UTF-8: byte 0xff",), table((HEAD + CSV).encode("utf-16"))),
    Command(FROM, ("zero byte in line 1",), table((HEAD + CSV).encode("utf-16-le"))),
    Command(FROM, ("byte 0xe9 in line 2",), table(HEAD.encode() + b"caf\xe9,a\n" + CSV.encode())),
    Command(FROM, ("zero byte in line 2",), table(HEAD + "a\0b,a\n" + CSV)),
    Command(FROM, ("its columns are 'text;label'", "separated by commas"), table((HEAD + CSV).replace(",", ";"))),
    Command(FROM, ("separated by commas",), table((HEAD + CSV).replace(",", "\t"))),
    Command(FROM, ("line 42 cannot be read as CSV",), table(HEAD + CSV + '"open,a\n')),
    Command(FROM, ("line 42 cannot be read as CSV",), table(HEAD + CSV + '"a"b,a\n')),
    Command(FROM, ("train: 33 texts",), table(HEAD + '"one\ntwo, ""three""",a\n' + CSV), code=0),
    Command(FROM, ("line 42 has 3 field(s), the header has 2",), table(HEAD + CSV + "one,two,three\n")),
    Command(FROM, ("line 42 has 1 field(s)",), table(HEAD + CSV + "alone\n")),
    Command(FROM, ("line 42 has an empty text",), table(HEAD + CSV + ",a\n")),
    Command(FROM, ("line 42: 'label' must be the name or number of a class",), table(HEAD + CSV + "x,\n")),
    Command(FROM, ("t.csv line 42 repeats the header",), table(HEAD + CSV + HEAD + CSV)),
    Command(
        FROM,
        ("t.csv line 1 has no columns 'text', 'label'",),
        table(CSV),
    ),
    Command(FROM + " --text-column 0", ("t.csv line 1 has no columns '0', 'label'",), table(CSV)),
    Command(FROM + " --text-column label --label-column text", ("a class has a single example",), table(HEAD + CSV)),
    Command(
        FROM + " --text-column text --label-column text",
        ("columns of a table must differ, got text, text",),
        table(HEAD + CSV),
    ),
    Command(FROM + " --text-column Text", ("no column 'Text'",), table(HEAD + CSV)),
    Command(FROM + " --second-column hypothesis", ("no column 'hypothesis'",), table(HEAD + CSV)),
    Command(FROM + " --second-column label", ("must differ, got text, label, label",), table(HEAD + CSV)),
    Command(FROM, ("names the column 'text' twice",), table("text,text,label\n" + "a,b,c\n")),
    Command(FROM, ("names the column 'label' twice",), table("text,label,label\n" + "a,b,c\n")),
    Command(FROM, ("--from t.csv: all texts of train are the same",), table(HEAD + "same,a\nsame,b\n" * 20)),
    Command(FROM, ("--from t.csv: train has texts of one class only",), table(HEAD + CSV.replace(",b", ",a"))),
    Command(FROM, ("a class has a single example",), table(HEAD + "one,a\ntwo,b\n")),
    Command(FROM, ("a class has a single example",), table(HEAD + CSV + "x,c\n")),
    Command(FROM, ("the labels 1 and 1.0, one number",), table(HEAD + CSV.replace(",b", ",1").replace(",a", ",1.0"))),
    Command(FROM, ("12 text(s) occur in both train and test",), table(HEAD + CSV * 3), code=0),
    Command(FROM, ("train: 33 texts",), table(HEAD + "\u202e\u0000".replace("\0", "") + ",a\n" + CSV), code=0),
    Command(FROM, ("train: 33 texts",), table(HEAD + "x" * 200_000 + ",a\n" + CSV), code=0),
    Command(
        "prepare table --from t.tsv",
        ("train: 33 texts",),
        table(HEAD.replace(",", "\t") + '"open\ta\n' + TSV, "t.tsv"),
        code=0,
    ),
    Command("prepare table --from t.tsv", ("t.tsv line 1 has no columns 'text', 'label'",), table(TSV, "t.tsv")),
    Command("prepare table --from t.tsv", ("t.tsv line 1 has no columns 'text', 'label'",), table(HEAD + CSV, "t.tsv")),
    Command("prepare table --from t.jsonl", ("train: 32 texts",), table(LINES, "t.jsonl"), code=0),
    Command(
        "prepare table --from t.jsonl",
        ("t.jsonl line 1 is not a JSON object with 'text', 'label'",),
        table("[1, 2]\n", "t.jsonl"),
    ),
    Command("prepare table --from t.jsonl", ("line 41 cannot be read as JSON",), table(LINES + "{\n", "t.jsonl")),
    Command(
        "prepare table --from t.jsonl",
        ("t.jsonl line 1 is not a JSON object with 'text', 'label'",),
        table(json.dumps([{"text": "a", "label": 1}]), "t.jsonl"),
    ),
    Command(
        "prepare table --from t.jsonl",
        ("'label' must be the name or number of a class, got nan",),
        table('{"text": "a", "label": NaN}\n', "t.jsonl"),
    ),
    Command(
        "prepare table --from t.jsonl",
        ("--from t.jsonl: train has texts of one class only",),
        table('{"text": 5, "label": 1}\n', "t.jsonl"),
    ),
    Command("prepare table --from t.jsonl", ("line 1 cannot be read as JSON",), table("[" * 100_000, "t.jsonl")),
    Command(
        "prepare table --from t.jsonl",
        ("t.jsonl line 1: 'text' has a lone surrogate, '\\ud83d'",),
        table('{"text": "\\ud83d", "label": 1}\n', "t.jsonl"),
    ),
    Command(
        "prepare table --from d",
        ("holds train.tsv and train.csv; keep one",),
        files({"d/train.csv": HEAD + CSV, "d/train.tsv": "x"}),
    ),
    Command("prepare table --from d", ("holds no train file",), files({"d/test.csv": HEAD + CSV})),
    Command(
        "prepare table --from d",
        ("d/test.csv line 2 has label 'c'",),
        files({"d/train.csv": HEAD + CSV, "d/test.csv": HEAD + "x,c\n"}),
    ),
    Command(
        "prepare table --from d", ("d/test.csv has no rows",), files({"d/train.csv": HEAD + CSV, "d/test.csv": HEAD})
    ),
    Command(
        "prepare table --from d",
        ("test: 40 texts",),
        files({"d/training.csv": HEAD + CSV, "d/testing.csv": HEAD + CSV}),
        code=0,
    ),
    Command(
        "prepare table --from d",
        ("'test_set.csv' looks like test",),
        files({"d/train.csv": HEAD + CSV, "d/test_set.csv": HEAD + CSV}),
    ),
    Command(
        "prepare table --from d",
        ("'test.json' looks like test",),
        files({"d/train.csv": HEAD + CSV, "d/test.json": "[]"}),
    ),
    Command(
        "prepare table --from d",
        ("--from d: 'test.csv' looks like test, but is not read",),
        both(files({"d/train.csv": HEAD + CSV}), link("d/test.csv", "nowhere")),
    ),
    Command(FROM + " --validation-share 0.5", ("test: 20 texts",), table(HEAD + CSV), code=0),
    Command(FROM + " --validation-share 0.9", ("--validation-share 0.9 cannot be cut",), table(HEAD + CSV)),
    Command(FROM + " --validation-share -1", ("--validation-share must be in (0, 1), got -1.0",), table(HEAD + CSV)),
    Command(
        RUN + " --batch-size 1000000",
        ("at most the 32 texts of the train split, got 1000000",),
        table(HEAD + CSV),
        gone=("runs",),
    ),
    Command(
        RUN + " --batch-size 33",
        ("at most the 32 texts of the train split, got 33",),
        table(HEAD + CSV),
        gone=("runs",),
    ),
    Command(
        RUN + " --train-examples 33",
        ("train must keep between 1 and 32 examples, got 33",),
        table(HEAD + CSV),
        gone=("runs",),
    ),
    Command(RUN + " --min-count 100", ("--min-count 100 does not fit the data",), table(HEAD + CSV), gone=("runs",)),
    Command(RUN + " --validation-examples 1", ("at least 2 texts",), table(HEAD + CSV), gone=("runs",)),
    Command(
        RUN + " --data.text-column body", ("t.csv line 1 has no column 'body'",), table(HEAD + CSV), gone=("runs",)
    ),
    Command(
        "run text-ut --data.text-column x --out runs/x",
        ("--data.text-column x is for --data.source table",),
        gone=("runs",),
    ),
    Command(
        "prepare sst2 --from d",
        ("no columns 'sentence', 'label'",),
        files({**SST2, "d/train.tsv": "fine\t1\ndull\t0\n"}),
    ),
    Command(
        "prepare sst2 --from d",
        ("label must be 0 (negative) or 1 (positive)",),
        files({**SST2, "d/train.tsv": "sentence\tlabel\nfine\t2\n"}),
    ),
    Command(
        "prepare sst2 --from d",
        ("--from d: train has texts of one class only",),
        files({**SST2, "d/train.tsv": "sentence\tlabel\nfine\t1\ngood\t1\n"}),
    ),
    Command(
        "prepare sst2 --from d", ("d/dev.tsv holds no sentences",), files({**SST2, "d/dev.tsv": "sentence\tlabel\n"})
    ),
    Command("prepare sst2 --from d", ("holds no dev.tsv",), files({"d/train.tsv": SST2["d/train.tsv"]})),
    Command(
        "prepare sst2 --from d",
        ("--from d: 'dev.tsv' is not a regular file",),
        folders("d/train.tsv", "d/dev.tsv", "d/test.tsv"),
    ),
    Command(
        "prepare sst2 --from t.zip",
        ("cannot be read",),
        both(spoilt_zip("t.zip", {k[2:]: v * 50 for k, v in SST2.items()}, 60)),
    ),
    Command(
        "prepare sst2 --from t.zip",
        ("nor a whole zip archive",),
        both(spoilt_zip("t.zip", {"train.tsv": "x"}, 60), cut("t.zip", 0.5)),
    ),
    Command("prepare sst2 --from=", ("--from is empty",)),
    Command(
        "prepare mnli --from d",
        ("gold_label 'maybe'",),
        files({**MNLI, "d/multinli_1.0_train.jsonl": PAIR.replace("neutral", "maybe")}),
    ),
    Command(
        "prepare mnli --from d",
        ("no labelled records",),
        files({**MNLI, "d/multinli_1.0_train.jsonl": PAIR.replace("neutral", "-")}),
    ),
    Command("prepare mnli --from d", ("a class has a single example",), files(MNLI)),
    Command("prepare imdb --from d", ("a class has a single example",), files(REVIEWS)),
    Command(
        "prepare imdb --from d", ("which are not those of pos",), files({**REVIEWS, "d/train/pos/1_2.txt": "words"})
    ),
    Command("prepare imdb --from d", ("byte 0xe9 in line 1",), files({**REVIEWS, "d/train/pos/1_9.txt": b"caf\xe9"})),
    Command("prepare imdb --from d", ("zero byte in line 1",), files({**REVIEWS, "d/train/pos/1_9.txt": b"a\0b"})),
    Command(
        "prepare imdb --from d", ("is not UTF-8",), both(files(REVIEWS), named_in_latin_1("d/train/pos/\xe9.txt", b"x"))
    ),
    Command("prepare imdb --from t.tar", ("holds no reviews",), tar("t.tar", {"aclImdb/train/neg/0_3.txt": b"words"})),
    Command("prepare verdicts --from d", ("prepare verdicts takes no --from, got 'd'",), folders("d")),
]
