import io
import itertools
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from unroll_jax.train.config.data import TextConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.text import load as load_texts
from unroll_jax.train.data.words import tokenise

SENTENCES = {
    "train": [("a gripping film .", 1), ("dull", 0), ('"unbalanced quote', 0), ("a\u2028line separator", 1)],
    "dev": [("crème brûlée", 1)],
    "test": [("dull", 0), ("fine", 1)],
}
REVIEWS = {
    "train/neg/0_3": "A waste.<br /><br />Really.",
    "train/neg/10_1": "Worse.",
    "train/neg/11_1": "Awful.",
    "train/neg/9_4": "Bad.",
    "train/pos/0_9": "Great — truly.",
    "train/pos/1_8": "Good.",
    "train/pos/2_7": "Fine.",
    "train/pos/10_7": "Nice.",
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
    def load_source(name, log=lambda line: None, place=None):
        place = place or {"sst2": root / "glue" / "SST-2", "imdb": root / "imdb"}[name]
        return load_texts(TextConfig(name, str(place), str(tmp_path / "prepared"), validation_share=0.25), log=log)

    return load_source


def everything(data, split):
    return data.read(split, range(data.num_examples(split)))


def pack(root, mode="w:gz", name="aclImdb_v1.tar.gz") -> Path:
    """Packs the unpacked reviews, in an order of its own, and takes the folder away."""
    with tarfile.open(root / "imdb" / name, mode) as archive:
        for file in sorted((root / "imdb" / "aclImdb").rglob("*.txt"), reverse=True):
            archive.add(file, file.relative_to(root / "imdb"))
    shutil.rmtree(root / "imdb" / "aclImdb")
    return root / "imdb" / name


@pytest.mark.parametrize("below", ["", "glue", "glue/SST-2"])
def test_sst2_is_read_as_written(load, root, below):
    data = load("sst2", place=root / below)
    assert data.class_names == ("negative", "positive")
    for split, name in zip(SPLITS, SENTENCES, strict=True):
        texts, labels, seconds = everything(data, split)
        assert list(zip(texts, labels.tolist(), strict=True)) == SENTENCES[name]
        assert seconds is None


def test_sst2_is_read_from_the_zip_archive_of_glue(load, root, tmp_path):
    with zipfile.ZipFile(tmp_path / "SST-2.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("dev", "test", "train"):
            archive.write(root / f"glue/SST-2/{name}.tsv", f"SST-2/{name}.tsv")
            archive.writestr(f"SST-2/original/older/{name}.tsv", "another file")
    data = load("sst2", place=tmp_path / "SST-2.zip")
    assert everything(data, "train").texts == [sentence for sentence, _ in SENTENCES["train"]]


def test_sst2_without_test_labels_is_tested_on_dev(load, root):
    (root / "glue/SST-2/test.tsv").write_text("index\tsentence\n0\tdull\n1\tfine\n")
    rows = "".join(f"sentence {number}\t{number % 2}\n" for number in range(16))
    (root / "glue/SST-2/train.tsv").write_text(f"sentence\tlabel\n{rows}")
    lines: list[str] = []
    data = load("sst2", lines.append)
    assert any("test.tsv has no labels" in line for line in lines)
    assert everything(data, "test").texts == ["crème brûlée"]
    assert [data.num_examples(split) for split in SPLITS] == [12, 4, 1]
    kept, held_out = (everything(data, split).texts for split in SPLITS[:2])
    assert sorted(kept + held_out) == sorted(f"sentence {number}" for number in range(16))


def test_carriage_returns_and_a_byte_order_mark_are_no_part_of_the_text(load, root):
    (root / "glue/SST-2/test.tsv").write_bytes(b"\xef\xbb\xbfsentence\tlabel\r\nfine\t1\r\n")
    assert everything(load("sst2"), "test").texts == ["fine"]


@pytest.mark.parametrize("packed", [None, ("w:gz", "aclImdb_v1.tar.gz"), ("w", "any.tar")])
def test_imdb_has_the_same_records_however_it_is_packed(load, root, packed):
    if packed:
        pack(root, *packed)
    data = load("imdb")
    train, validation, test = (everything(data, split) for split in SPLITS)
    negative = ["A waste.<br /><br />Really.", "Bad.", "Worse.", "Awful."]
    positive = ["Great — truly.", "Good.", "Fine.", "Nice."]
    assert [text for text in negative + positive if text not in validation.texts] == train.texts
    assert validation.labels.tolist() == [0, 1]
    assert train.labels.tolist() == [0] * 3 + [1] * 3
    assert (test.texts, test.labels.tolist()) == (["Bad.", "Superb."], [0, 1])


@pytest.mark.parametrize("place", ["", "imdb", "imdb/aclImdb"])
def test_imdb_is_found_in_its_folder_and_in_those_above(load, root, place):
    assert load("imdb", place=root / place).num_examples("test") == 2


def test_texts_in_both_splits_are_told(load):
    lines: list[str] = []
    load("sst2", lines.append)
    assert any("1 text(s) occur in both train and test" in line for line in lines)


def test_prepared_texts_need_no_originals_again_and_changed_originals_are_prepared_afresh(load, root):
    load("sst2")
    silent: list[str] = []
    load("sst2", silent.append)
    assert silent == []
    (root / "glue/SST-2/dev.tsv").write_text("sentence\tlabel\nother\t0\n")
    assert everything(load("sst2"), "validation").texts == ["other"]


def test_a_batch_depends_on_seed_and_number_alone(load):
    batches = [itertools.islice(load("sst2").batches("train", batch_size=2, seed=5), 4) for _ in range(2)]
    first, second = ([batch.texts for batch in several] for several in batches)
    assert first == second
    assert load("sst2").batch("train", batch_size=2, seed=5, step=3).texts == first[3]
    assert sorted(first[0] + first[1]) == sorted(sentence for sentence, _ in SENTENCES["train"])
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
    "no file": ("sst2", lambda root: (root / "glue/SST-2/dev.tsv").unlink(), r"holds no dev\.tsv; give the folder of"),
    "no files": ("sst2", lambda root: shutil.rmtree(root / "glue/SST-2"), r"SST-2 does not exist; give the folder of"),
    "header": ("sst2", sst2_line(b"text\tlabel\nfine\t1\n"), r"train\.tsv line 1 has no column 'sentence'; .* 'text'"),
    "no header": (
        "sst2",
        sst2_line(b"fine\t1\n"),
        r"line 1 has no columns 'sentence', 'label'; its .* 'fine', '1'",
    ),
    "empty file": ("sst2", sst2_line(b""), r"train\.tsv is empty; it must begin with a header"),
    "no rows": ("sst2", sst2_line(b"sentence\tlabel\n"), r"train\.tsv holds no sentences"),
    "label": ("sst2", sst2_line(b"sentence\tlabel\nfine\t1\nodd\t2\n"), r"train\.tsv line 3 has label '2'"),
    "no label": ("sst2", sst2_line(b"sentence\tlabel\nfine\n"), r"line 2 has 1 field"),
    "many fields": ("sst2", sst2_line(b"sentence\tlabel\na\tb\t1\n"), r"line 2 has 3 field"),
    "no text": ("sst2", sst2_line(b"sentence\tlabel\n \t1\n"), r"line 2 has an empty text"),
    "not UTF-8": ("sst2", sst2_line(b"sentence\tlabel\ncr\xe8me\t1\n"), r"not UTF-8: byte 0xe8 in line 2"),
    "no reviews": ("imdb", lambda root: shutil.rmtree(root / "imdb/aclImdb"), r"holds neither aclImdb/train/neg/0_3"),
    "no class": ("imdb", lambda root: shutil.rmtree(root / "imdb/aclImdb/test/pos"), r"no reviews aclImdb/test/pos"),
    "odd class": ("imdb", folder("neutral"), r"train/neutral/0_5\.txt is not in the folder of a class; .* neg, pos"),
    "stars": ("imdb", review("train/neg/1_9", b"fine"), r"neg/1_9\.txt has 9 stars"),
    "empty review": ("imdb", review("test/pos/1_10", b"<br /> \n"), r"test/pos/1_10\.txt has an empty text"),
    "review not UTF-8": ("imdb", review("train/neg/0_3", b"\n\xff"), r"0_3\.txt is not UTF-8: byte 0xff in line 2"),
    "truncated": ("imdb", truncate, r"nor a whole tar archive"),
    "no end": ("imdb", drop_end, r"nor a whole tar archive \(it has no end mark\)"),
    "two archives": ("imdb", second_archive, r"holds 2 archives \(aclImdb_v1\.tar\.gz, more\.tar\)"),
    "no archive": ("imdb", lambda root: pack(root).write_bytes(b"text"), r"nor a whole tar archive"),
    "link": ("imdb", link, r"'aclImdb/train/neg/0_3\.txt' is not a plain file; make the archive anew"),
}


@pytest.mark.parametrize(("name", "spoil", "message"), BAD.values(), ids=BAD)
def test_bad_originals_are_told_in_one_line(load, root, name, spoil, message):
    spoil(root)
    with pytest.raises(UserError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_damaged_zip_archive_is_told(load, root, tmp_path):
    with zipfile.ZipFile(tmp_path / "SST-2.zip", "w") as archive:
        for name in ("dev", "test", "train"):
            archive.write(root / f"glue/SST-2/{name}.tsv", f"SST-2/{name}.tsv")
    content = (tmp_path / "SST-2.zip").read_bytes()
    (tmp_path / "SST-2.zip").write_bytes(content[:-30])
    with pytest.raises(UserError, match=r"is neither a folder nor a whole zip archive .*copy it again"):
        load("sst2", place=tmp_path / "SST-2.zip")
    (tmp_path / "SST-2.zip").write_bytes(content.replace(b"gripping", b"griPPing"))
    with pytest.raises(UserError, match=r"train.tsv cannot be read \(Bad CRC-32"):
        load("sst2", place=tmp_path / "SST-2.zip")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop", ["do", "n't", "stop"]),
        ("you've he's it’s", ["you", "'ve", "he", "'s", "it", "'s"]),
        ("you 've ca n't", ["you", "'ve", "ca", "n't"]),
        ("end.The next", ["end", ".", "the", "next"]),
        ("U.S. 3.5 1,000", ["u.s.", "3.5", "1,000"]),
        ("one<br /><br/>two<BR>three", ["one", "two", "three"]),
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
