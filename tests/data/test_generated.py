"""The sources that need no files: the properties of their examples, the same bit for bit every time."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.data import generated
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.data.prepare import resolve_source
from unroll_jax.train.data.video import SOURCES

# Of pixels or texts, then labels, of the first 32 examples and the last (2026-11); other versions of NumPy may differ.
CHECKSUMS: dict[str, list[tuple[int, int]]] = {
    "photos": [(4267537629, 1330496547), (3332762510, 2563865812), (691965407, 1726145922)],
    "digits": [(3901182323, 2266321283), (2280913195, 3418233306), (1690287930, 4025265200)],
    "shapes": [(3849542539, 745226577), (1356877600, 1407319423), (217668509, 534264705)],
    "verdicts": [(1353298469, 2353807033), (1055962674, 2106376478), (4221045552, 2608299255)],
}


def checksum(batch: Any) -> int:
    crc = 0
    for part in batch if isinstance(batch, tuple) else (batch,):
        if part is not None:
            crc = zlib.crc32("\n".join(part).encode() if isinstance(part, list) else part.tobytes(), crc)
    return crc


@pytest.mark.parametrize("source", CHECKSUMS)
def test_examples_and_statistics_are_what_they_were(opened, source):
    data, first = opened(source), np.arange(32)
    batches = [(data.read(split, first), data.read(split, data.num_examples(split) - 32 + first)) for split in SPLITS]
    assert [tuple(map(checksum, pair)) for pair in batches] == CHECKSUMS[source]
    if source == "photos":
        assert data.pixel_std == 0.32481402160705397
    if source == "shapes":
        np.testing.assert_array_equal(data.mean, np.array([0.39712176, 0.4015909, 0.39637184], np.float32))
        np.testing.assert_array_equal(data.std, np.array([0.19604047, 0.19262077, 0.19741373], np.float32))


def test_photo_clips_are_numbered_and_move_and_regions_of_splits_share_no_pixel():
    source, root = resolve_source(SOURCES, DataConfig())
    with source.open(root or Path(), print) as splits:
        names = [clip.name for split in SPLITS for clip in splits[split]]
        assert [len(splits[split]) for split in SPLITS] == [80, 12, 20]
        frames = list(splits["test"][0].frames)
    assert names == [f"photo clip {number}" for number in range(112)]
    assert np.shape(frames) == (20, 160, 160)
    assert (frames[0] != frames[-1]).mean() > 0.5
    for photo in range(2):
        tiles = [tile for split in SPLITS for tile in generated.TILES[split][photo]]
        assert sorted(tiles) == [(row, column) for row in range(2) for column in range(4)]
    assert 2 * generated.TILE_HEIGHT <= 427
    assert 4 * generated.TILE_WIDTH <= 640
    assert min(generated.TILE_HEIGHT, generated.TILE_WIDTH) >= generated.LARGEST_VIEW


def test_shapes_are_scenes_of_five_classes_none_twice_with_rims_that_do_not_count_and_colours_that_tell_nothing(opened):
    shapes, scenes = opened("shapes"), set()
    assert [shapes.num_examples(split) for split in SPLITS] == [480, 60, 120]
    assert shapes.shape == (48, 48, 3)
    for split in SPLITS:
        images, labels = shapes.whole(split)
        scenes |= {image.tobytes() for image in images}
        assert set(np.unique(labels)) == {0, 1, 2, 3, 4, NOT_COUNTED}
        assert 0.02 < (labels == NOT_COUNTED).mean() < 0.15
        assert all(0.01 < (labels == shape).mean() < 0.15 for shape in range(1, 5))
        means, spread = (
            np.stack([measure(images[labels == shape], axis=0) for shape in range(1, 5)])
            for measure in (np.mean, np.std)
        )
        assert split != "train" or (np.ptp(means, axis=0) < 0.5 * spread.min(0)).all()
    assert len(scenes) == 660


def praise(clause):
    negative, positive = generated.WORDS
    good = [word in positive for word in clause.split() if word in (*negative, *positive)]
    assert len(good) == 1, clause
    return int(good[0]) ^ bool({*clause.split()} & {*generated.NEGATIONS})


def clauses_of(sentence):
    for opening in generated.OPENINGS:
        sentence = sentence.removeprefix(" ".join(opening) + " , ")
    clauses = sentence.removesuffix(" .").split(" , ")
    main = [clause for clause in clauses if clause.split()[0] not in generated.CONCESSIONS][-1]
    return main, [clause for clause in clauses if clause != main]


def test_verdicts_are_distinct_and_balanced_and_only_the_order_of_their_clauses_decides(opened):
    batches = [opened("verdicts").whole(split) for split in SPLITS]
    texts = [text for batch in batches for text in batch.texts]
    assert len(set(texts)) == len(texts) == 2800
    assert [batch.labels.sum() for batch in batches] == [1000, 200, 200]
    main, others = zip(*map(clauses_of, texts), strict=True)
    assert [praise(one) for one in main] == [label for batch in batches for label in batch.labels]
    # Clauses that change places keep the words and change the class: no model without order gets both right.
    both = [(praise(one), praise(*other)) for one, other in zip(main, others, strict=True) if other]
    assert all(one != other for one, other in both)
    assert 0.35 < len(both) / len(texts) < 0.45
    train, _, test = batches
    counts = CountVectorizer(token_pattern=r"\S+").fit(train.texts)
    words = LogisticRegression(max_iter=1000).fit(counts.transform(train.texts), train.labels)
    assert 0.4 < words.score(counts.transform(test.texts), test.labels) < 0.6
