import numpy as np
import pytest
from PIL import Image

from train.data.clips import patch_sequences, split_sizes, standard_frame, windows


def test_windows_are_consecutive_and_do_not_overlap():
    frames = np.arange(45).reshape(45, 1, 1).repeat(160, 1).repeat(160, 2)
    first, second = windows(frames)
    assert first[:, 0, 0].tolist() == list(range(20))
    assert second[:, 5, 7].tolist() == list(range(20, 40))


def test_frames_short_of_a_window_give_none():
    assert list(windows(np.zeros((19, 160, 160)))) == []


def test_patches_follow_one_position_through_time():
    window = np.random.default_rng(0).integers(0, 256, (20, 160, 160), np.uint8)
    sequences = patch_sequences(window)
    assert sequences.shape == (100, 20, 256)
    np.testing.assert_array_equal(sequences[23, 7], window[7, 32:48, 48:64].ravel())  # row 2, column 3


def test_patches_hold_every_pixel_once():
    window = np.arange(2 * 32 * 48).reshape(2, 32, 48)
    assert sorted(patch_sequences(window).ravel()) == list(range(window.size))


@pytest.mark.parametrize("count", [3, 4, 10, 17, 126, 1000])
def test_splits_take_everything_and_none_is_empty(count):
    sizes = split_sizes(count)
    assert sum(sizes.values()) == count
    assert min(sizes.values()) >= 1
    assert abs(sizes["test"] - count / 10) <= 1


def test_fewer_than_three_things_cannot_be_split():
    with pytest.raises(ValueError, match="2 cannot be split"):
        split_sizes(2)


def test_a_grey_frame_of_the_right_size_is_untouched():
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160), np.uint8)
    np.testing.assert_array_equal(standard_frame(Image.fromarray(pixels)), pixels)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "L"])
def test_any_picture_becomes_grey_and_square(mode):
    frame = standard_frame(Image.new("RGB", (360, 240), (90, 90, 90)).convert(mode))
    assert frame.shape == (160, 160)
    assert frame.dtype == np.uint8


def test_deep_pixels_are_refused_rather_than_clipped():
    with pytest.raises(ValueError, match="more than 8 bits"):
        standard_frame(Image.fromarray(np.full((160, 160), 40_000, np.uint16)))
