import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from train.data.text import TEXTS, load_text, tokenise
from train.errors import UserError

SENTENCES = {
    "train": [("a gripping film .", 1), ("dull", 0), ('"unbalanced quote', 0), ("a\u2028line separator", 1)],
    "dev": [("crème brûlée", 1)],
    "test": [("dull", 0), ("fine", 1)],
}
REVIEWS = {
    "train/neg/0_3": "A waste.<br /><br />Really.",
    "train/neg/10_1": "Worse.",
    "train/neg/9_4": "Bad.",
    "train/pos/0_9": "Great — truly.",
    "train/unsup/0_0": "No label.",
    "test/neg/2_2": "Bad.",
    "test/pos/1_10": "Superb.",
}


@pytest.fixture
def root(tmp_path) -> Path:
    """Both data sets in their published layout."""
    sst2, imdb = tmp_path / "data" / "glue" / "SST-2", tmp_path / "data" / "imdb" / "aclImdb"
    sst2.mkdir(parents=True)
    for split, rows in SENTENCES.items():
        lines = ["sentence\tlabel", *(f"{sentence}\t{label}" for sentence, label in rows)]
        (sst2 / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    for name, text in REVIEWS.items():
        (imdb / name).parent.mkdir(parents=True, exist_ok=True)
        (imdb / f"{name}.txt").write_text(text)
    (imdb / "train" / "urls_neg.txt").write_text("not a review")
    return tmp_path / "data"


@pytest.fixture
def load(root, tmp_path):
    return lambda name, log=lambda line: None: load_text(name, root, prepared=str(tmp_path / "prepared"), log=log)


def pack(root, mode="w:gz", name="aclImdb_v1.tar.gz") -> Path:
    """Packs the unpacked reviews, in an order of its own, and takes the folder away."""
    with tarfile.open(root / "imdb" / name, mode) as archive:
        for file in sorted((root / "imdb" / "aclImdb").rglob("*.txt"), reverse=True):
            archive.add(file, file.relative_to(root / "imdb"))
    shutil.rmtree(root / "imdb" / "aclImdb")
    return root / "imdb" / name


def test_sst2_is_read_as_written(load):
    data = load("sst2")
    assert data.splits == ("train", "validation", "test")
    for split, name in zip(data.splits, SENTENCES, strict=True):
        texts, labels = data.read(split, range(data.num_texts(split)))
        assert list(zip(texts, labels.tolist(), strict=True)) == SENTENCES[name]


def test_sst2_without_test_labels_is_read_as_unlabelled(load, root):
    (root / "glue/SST-2/test.tsv").write_text("index\tsentence\n0\tdull\n1\tfine\n")
    texts, labels = load("sst2").read("test", [0, 1])
    assert texts == ["dull", "fine"]
    np.testing.assert_array_equal(labels, [-1, -1])


def test_carriage_returns_and_a_byte_order_mark_are_no_part_of_the_text(load, root):
    (root / "glue/SST-2/test.tsv").write_bytes(b"\xef\xbb\xbfsentence\tlabel\r\nfine\t1\r\n")
    assert load("sst2").read("test", [0]).texts == ["fine"]


@pytest.mark.parametrize("packed", [None, ("w:gz", "aclImdb_v1.tar.gz"), ("w", "any.tar")])
def test_imdb_has_the_same_records_however_it_is_packed(load, root, packed):
    if packed:
        pack(root, *packed)
    data = load("imdb")
    train, test = (data.read(split, range(data.num_texts(split))) for split in ("train", "test"))
    assert train.texts == ["A waste.<br /><br />Really.", "Bad.", "Worse.", "Great — truly."]
    assert train.labels.tolist() == [0, 0, 0, 1]
    assert (test.texts, test.labels.tolist()) == (["Bad.", "Superb."], [0, 1])


def test_texts_in_both_splits_are_told(load):
    lines: list[str] = []
    load("imdb", lines.append)
    assert any("1 text(s) occur in both train and test" in line for line in lines)


def test_prepared_texts_need_no_originals_again_and_changed_originals_are_prepared_afresh(load, root):
    load("sst2")
    silent: list[str] = []
    load("sst2", silent.append)
    assert silent == []
    (root / "glue/SST-2/dev.tsv").write_text("sentence\tlabel\nother\t0\n")
    assert load("sst2").read("validation", [0]).texts == ["other"]


def test_a_batch_depends_on_seed_and_number_alone(load):
    batches = [load("sst2").batches("train", batch_size=2, seed=5) for _ in range(2)]
    assert batches[0][3].texts == batches[1][3].texts
    epoch = [text for number in range(2) for text in batches[0][number].texts]
    assert sorted(epoch) == sorted(sentence for sentence, _ in SENTENCES["train"])
    assert [len(batch.texts) for batch in load("sst2").examples("train", batch_size=3)] == [3, 1]


def sst2_line(text, name="train"):
    return lambda root: (root / f"glue/SST-2/{name}.tsv").write_bytes(text)


def review(name, content):
    return lambda root: (root / f"imdb/aclImdb/{name}.txt").write_bytes(content)


def folder(name):
    def make(root):
        (root / "imdb/aclImdb/train" / name).mkdir()
        (root / "imdb/aclImdb/train" / name / "0_5.txt").write_text("so-so")

    return make


def truncate(root):
    archive = pack(root)
    archive.write_bytes(archive.read_bytes()[:-40])


def drop_end(root):
    archive = pack(root, "w", "aclImdb.tar")
    with tarfile.open(archive) as opened:
        end = opened.getmembers()[-1]
    archive.write_bytes(archive.read_bytes()[: end.offset])


def second_archive(root):
    pack(root)
    (root / "imdb/more.tar").write_bytes(b"")


def link(root):
    pack(root)
    with tarfile.open(root / "imdb/aclImdb_v1.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("aclImdb/train/neg/0_3.txt")
        member.type, member.linkname = tarfile.SYMTYPE, "elsewhere"
        archive.addfile(member, io.BytesIO())


BAD = {
    "no file": ("sst2", lambda root: (root / "glue/SST-2/dev.tsv").unlink(), r"dev\.tsv does not exist"),
    "header": ("sst2", sst2_line(b"text\tlabel\nfine\t1\n"), r"must begin with the header .* got 'text\\tlabel'"),
    "no header": ("sst2", sst2_line(b"fine\t1\n"), r"must begin with the header"),
    "empty file": ("sst2", sst2_line(b""), r"must begin with the header"),
    "no rows": ("sst2", sst2_line(b"sentence\tlabel\n"), r"train\.tsv holds no sentences"),
    "label": ("sst2", sst2_line(b"sentence\tlabel\nfine\t1\nodd\t2\n"), r"train\.tsv line 3 has label '2'"),
    "no label": ("sst2", sst2_line(b"sentence\tlabel\nfine\n"), r"line 2 has 1 field"),
    "many fields": ("sst2", sst2_line(b"sentence\tlabel\na\tb\t1\n"), r"line 2 has 3 field"),
    "no text": ("sst2", sst2_line(b"sentence\tlabel\n \t1\n"), r"line 2 has an empty text"),
    "not UTF-8": ("sst2", sst2_line(b"sentence\tlabel\ncr\xe8me\t1\n"), r"not UTF-8: byte 0xe8 in line 2"),
    "no reviews": ("imdb", lambda root: shutil.rmtree(root / "imdb"), r"holds neither aclImdb nor a tar archive"),
    "no class": ("imdb", lambda root: shutil.rmtree(root / "imdb/aclImdb/test/pos"), r"no reviews aclImdb/test/pos"),
    "odd class": ("imdb", folder("neutral"), r"train/neutral/0_5\.txt lies in no class; .* neg, pos"),
    "stars": ("imdb", review("train/neg/1_9", b"fine"), r"neg/1_9\.txt has 9 stars"),
    "empty review": ("imdb", review("test/pos/1_10", b"<br /> \n"), r"test/pos/1_10\.txt has an empty text"),
    "review not UTF-8": ("imdb", review("train/neg/0_3", b"\n\xff"), r"0_3\.txt is not UTF-8: byte 0xff in line 2"),
    "truncated": ("imdb", truncate, r"nor a whole tar archive"),
    "no end": ("imdb", drop_end, r"nor a whole tar archive \(it has no end mark\)"),
    "two archives": ("imdb", second_archive, r"holds 2 archives \(aclImdb_v1\.tar\.gz, more\.tar\)"),
    "no archive": ("imdb", lambda root: pack(root).write_bytes(b"text"), r"nor a whole tar archive"),
    "link": ("imdb", link, r"'aclImdb/train/neg/0_3\.txt' is not a whole plain file"),
}


@pytest.mark.parametrize(("name", "spoil", "message"), BAD.values(), ids=BAD)
def test_bad_originals_are_told_in_one_line(load, root, name, spoil, message):
    spoil(root)
    with pytest.raises(UserError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_root_that_is_no_folder_is_told(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        load_text("sst2", tmp_path / "nowhere", prepared=str(tmp_path))


def test_an_unknown_split_is_told(load):
    with pytest.raises(ValueError, match="train, test, got 'dev'"):
        load("imdb").num_texts("dev")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop", ["do", "n't", "stop"]),
        ("you've he's it’s", ["you", "'ve", "he", "'s", "it", "'s"]),
        ("you 've ca n't", ["you", "'ve", "ca", "n't"]),
        ("end.The next", ["end", ".", "the", "next"]),
        ("U.S. 3.5 1,000", ["u.s.", "3.5", "1,000"]),
        ("one<br /><br/>two", ["one", "two"]),
        ("well-made (k-19)", ["well-made", "(", "k-19", ")"]),
        ("-LRB- director\\/writer -rrb-", ["-lrb-", "director", "/", "writer", "-rrb-"]),
        ("Crème brûlée...", ["crème", "brûlée", "..."]),
        (" \t\n", []),
    ],
)
def test_texts_are_split_into_the_words_of_the_treebank(text, words):
    assert tokenise(text) == words


def test_long_texts_keep_all_their_words():
    assert len(tokenise("word " * 20_000)) == 20_000


def test_reading_text_needs_no_tensorflow():
    code = "import sys, train.data.text; print('tensorflow' in sys.modules)"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.data
def test_the_published_files_have_their_known_counts(real_data, tmp_path):
    lines: list[str] = []
    counts = {}
    for name in TEXTS:
        data = load_text(name, real_data, prepared=str(tmp_path), log=lines.append)
        for split in data.splits:
            labels = data.read(split, range(data.num_texts(split))).labels
            counts[name, split] = np.bincount(labels).tolist()
    assert counts == {
        ("imdb", "train"): [12_500, 12_500],
        ("imdb", "test"): [12_500, 12_500],
        ("sst2", "train"): [29_780, 37_569],
        ("sst2", "validation"): [428, 444],
        ("sst2", "test"): [912, 909],
    }
    assert "  123 text(s) occur in both train and test; they are kept, as in the original" in lines
