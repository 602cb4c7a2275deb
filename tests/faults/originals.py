"""Faults of how original files are told apart, read and refused."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: list[Fault] = [
    Fault(
        "testing/frames is no split, so its clips are trained on",
        "train/data/splits.py",
        '"test": ("test", "testing", ',
        '"test": ("test", ',
        "tests/data/test_clips.py",
    ),
    Fault(
        "folders that look like splits are dealt like any others",
        "train/data/clips.py",
        "    if examples:\n",
        "    if not names:\n",
        "tests/data/test_clips.py",
    ),
    Fault(
        "masks of anomalies are clips",
        "train/data/clips.py",
        "any(MASKS.fullmatch(part) for part in (*path.parent.parts, path.stem))",
        "any(MASKS.fullmatch(part) for part in ())",
        "tests/data/test_clips.py tests/data/test_frames.py",
    ),
    Fault(
        "a clip that is there as frames and as a video trains and validates",
        "train/data/footage.py",
        "or (stated_split(name, root=root), name.stem) in both",
        "or False",
        "tests/data/test_footage.py",
    ),
    Fault(
        "frames of one grey level are prepared",
        "train/data/video.py",
        "if np.count_nonzero(histogram) < 2:",
        "if np.count_nonzero(histogram) < 1:",
        "tests/data/test_video.py",
    ),
    Fault(
        "a truncated video counts as a whole one",
        "train/data/video_file.py",
        "if shortfall := _shortfall(path, claim, count, seconds):",
        "if shortfall := None:",
        "tests/data/test_video_file.py",
    ),
    Fault(
        "images of one class alone are prepared",
        "train/data/pictures.py",
        '(2 if split == "train" else 1)',
        "1",
        "tests/data/test_image_sources.py tests/data/test_road_scenes.py",
    ),
    Fault(
        "images of one colour are prepared",
        "train/data/pictures.py",
        "(np.count_nonzero(counts, axis=-1) < 2).all()",
        "(np.count_nonzero(counts, axis=-1) < 1).all()",
        "tests/data/test_image_sources.py",
    ),
    Fault(
        "the first line of a table without header is lost",
        "train/data/rows.py",
        "            if not is_row:\n                continue\n",
        "            continue\n",
        "tests/data/test_rows.py",
    ),
    Fault(
        "a header is a row where columns are numbers",
        "train/data/table.py",
        '    _refuse_header(tables["train"])\n',
        "",
        "tests/data/test_rows.py",
    ),
    Fault(
        "folders that cannot be read are left out",
        "train/data/files.py",
        "followlinks=True, onerror=_refuse",
        "followlinks=True",
        "tests/data/test_files.py",
    ),
    Fault(
        "links to folders are left out",
        "train/data/files.py",
        "followlinks=True",
        "followlinks=False",
        "tests/data/test_files.py",
    ),
    Fault(
        "a batch may be larger than the train split",
        "train/tasks/common.py",
        "    if batch_size > num_examples:",
        "    if batch_size < 0:",
        "tests/train/test_recipe.py",
    ),
    Fault(
        "tables of splits under other names are left out",
        "train/data/table.py",
        "    _check_others(root, paths)\n",
        "",
        "tests/data/test_rows.py",
    ),
]
