"""Clips and videos meant to break what reads them."""

import tarfile

from tests.hostile.command import Command
from tests.hostile.given import (
    both,
    clips,
    cut,
    files,
    folders,
    image,
    link,
    named_in_latin_1,
    pages,
    tar,
    video,
)

THREE = {"d/a": 20, "d/b": 20, "d/c": 20}
PED2 = {"d/training/frames/01": 20, "d/training/frames/02": 20, "d/testing/frames/01": 20}
NEWLINE = {"d/a\nb": 20, "d/b c": 20, "d/c": 20}
FRAMES = {f"d/{clip}/{n}.png": image(n) for clip in "abc" for n in range(20)}
KEEP = {name: content for name, content in FRAMES.items() if name != "d/a/3.png"}
FROM = "prepare video --from d"
RUN = "run video-ut --data.source video --data.root d --out runs/x"


def spoilt(content: bytes, name: str = "d/a/3.png"):
    """Three clips, one frame of which is something else."""
    return files({**FRAMES, name: content})


COMMANDS = [
    Command("prepare video --from nowhere", ("--from nowhere does not exist",)),
    Command("prepare video", ("prepare video needs --from",)),
    Command("prepare video --from=", ("--from",)),
    Command("prepare video --from ~nobody-here/x", ("~nobody-here",)),
    Command(f"prepare video --from {'x' * 5000}", ("cannot be read",)),
    Command("prepare photos --from d", ("takes no --from",), folders("d")),
    Command("prepare videos --from d", ("videos",), folders("d")),
    Command("prepare video --from d --validation-share 0.2", ("--validation-share",), clips(THREE)),
    Command("prepare video --from d --text-column x", ("--text-column",), clips(THREE)),
    Command(FROM, ("--from d holds no .png, .jpg, .jpeg, .tif, .tiff, .bmp,",), folders("d")),
    Command(FROM, ("--from d holds no .png, .jpg, .jpeg, .tif, .tiff, .bmp,",), folders("d/train/a", "d/test/b")),
    Command(FROM, ("holds no .png",), files({"d/a.txt": "x"})),
    Command(FROM, ("--from d: video 'd' cannot be read as a video",), files({"d": "x"})),
    Command(FROM, ("--from d: video 'd' has 1 frames, fewer than the 20 of a",), files({"d": ""})),
    Command(FROM, ("whole tar",), files({"d": image()})),
    Command(FROM, ("does not exist",), link("d", "d")),
    Command(FROM, ("does not exist",), link("d", "nowhere")),
    Command(FROM, ("'d/d' links to a folder above it",), both(clips(THREE), link("d/d", "../d"))),
    Command(FROM, ("links to a folder above it",), both(clips(THREE), link("d/a/up", ".."))),
    Command(
        FROM,
        ("clips: 1 (x/c)",),
        both(clips({"real/a": 20, "real/b": 20, "real/c": 20}), link("d/x", "../real")),
        code=0,
    ),
    Command(FROM, ("'a/21.png' cannot be read",), both(clips(THREE), link("d/a/21.png", "nowhere.png"))),
    Command(FROM, ("test: 100 sequences, clips: 1 (testing/frames/01)",), clips(PED2), code=0),
    Command(
        FROM,
        ("passing over 1 folder(s) of masks or inside of a clip, as",),
        clips({"d/Train/Train001": 20, "d/Train/Train002": 20, "d/Test/Test001": 20, "d/Test/Test001_gt": 20}),
        code=0,
    ),
    Command(
        FROM,
        ("validation: 100 sequences, clips: 1 (val/1)", "clips: 1 (test/1)"),
        clips({"d/train/1": 20, "d/val/1": 20, "d/test/1": 20}),
        code=0,
    ),
    Command(
        FROM, ("clips: 1 (testing/1)",), clips({"d/TRAINING/1": 20, "d/Training/2": 20, "d/testing/1": 20}), code=0
    ),
    Command(
        FROM,
        ("train/frames 20 to 39", "validation: 100 sequences, clips: 1 (train/frames 40 to 59)"),
        clips({"d/train": 60, "d/test": 20}),
        code=0,
    ),
    Command(FROM, ("test: 100 sequences, clips: 1 (frames 40 to 59)",), clips({"d": 65}), code=0),
    Command(FROM, ("--from d: clip '.' of 59 frames is the only one for 3 splits",), clips({"d": 59})),
    Command(FROM, ("look like splits", "ROOT/test/CLIP"), clips({"d/Train001": 20, "d/Train002": 20, "d/Test001": 20})),
    Command(
        FROM,
        ("'train_set/1' like train and 'test_set/1' like test",),
        clips({"d/train_set/1": 20, "d/train_set/2": 20, "d/test_set/1": 20}),
    ),
    Command(
        FROM,
        ("'test-hard/1' like test",),
        clips({"d/train/1": 20, "d/train/2": 20, "d/test/1": 20, "d/test-hard/1": 20}),
    ),
    Command(
        FROM,
        ("passing over 1 clip(s) outside of the splits, as",),
        clips({"d/train/1": 20, "d/train/2": 20, "d/test/1": 20, "d/extra/1": 20}),
        code=0,
    ),
    Command(FROM, ("2 Train and 0 Test",), clips({"d/train/1": 20, "d/train/2": 20})),
    Command(FROM, ("0 Train and 2 Test",), clips({"d/test/1": 20, "d/test/2": 20})),
    Command(FROM, ("1 Train and 0 Test",), clips({"d/train/1": 20, "d/val/1": 20})),
    Command(FROM, ("lies in folders of test and train",), clips({"d/train/test/1": 20, "d/train/1": 20})),
    Command(FROM, ("no clips but masks",), clips({"d/a_gt": 20, "d/b_gt": 20, "d/c_mask": 20})),
    Command(
        FROM, ("passing over 1 folder(s) of masks or inside of a clip, as",), clips({**THREE, "d/b/flow": 20}), code=0
    ),
    Command(
        FROM,
        ("--from d holds frames and folders of frames, as 'cover.png'",),
        both(clips(THREE), files({"d/cover.png": image()})),
    ),
    Command(FROM, ("holds 2 clip(s); give at least 3",), clips({"d/a": 20, "d/b": 20})),
    Command(FROM, ("clip 'e' has 19 frames",), clips({**THREE, "d/e": 19})),
    Command(FROM, ("--from d: all frames of train have one grey level",), clips(THREE, black=True)),
    Command(RUN, ("--data.root d: all frames of train have one grey level",), clips(THREE, black=True), gone=("runs",)),
    Command(
        FROM,
        ("--from d: all frames of test have one grey level",),
        both(clips({"d/a": 20, "d/b": 20}), clips({"d/c": 20}, black=True)),
    ),
    Command(
        RUN + " --batch-size 1000000",
        ("--batch-size must be at most the 100 sequences of the train split", "got 1000000"),
        clips(THREE),
        gone=("runs",),
    ),
    Command(RUN + " --batch-size 101", ("at most the 100 sequences",), clips(THREE), gone=("runs",)),
    Command(FROM, ("'a/3.png' cannot be read as an image (not an image",), spoilt(b"")),
    Command(FROM, ("not an image of a known kind",), spoilt(b"not an image")),
    Command(FROM, ("image file is truncated",), spoilt(image(3)[:60])),
    Command(FROM, ("not an image of a known kind",), spoilt(image(3, kind="GIF"))),
    Command(FROM, ("more than 8 bits (mode I;16)",), spoilt(image(3, mode="I;16"))),
    Command(FROM, ("more than 8 bits (mode F)",), spoilt(image(3, mode="F", kind="TIFF"))),
    Command(FROM, ("clips: 1 (a)",), spoilt(image(3, mode="CMYK", kind="JPEG")), code=0),
    Command(FROM, ("clips: 1 (a)",), spoilt(image(3, mode="RGBA")), code=0),
    Command(FROM, ("clips: 1 (a)",), spoilt(image(3, mode="P")), code=0),
    Command(FROM, ("clips: 1 (a)",), spoilt(image(3, mode="1")), code=0),
    Command(FROM, ("it holds 3 pictures",), spoilt(pages("TIFF"))),
    Command(FROM, ("it holds 3 pictures",), spoilt(pages("PNG"))),
    Command(FROM, ("'a/0.png' is 8x8, 'a/3.png' is 9x9",), spoilt(image(3, side=9))),
    Command(
        FROM,
        ("clip 'a' has 19 frames",),
        both(files(KEEP), folders("d/a/3.png")),
    ),
    Command(FROM, ("clips: 1 (b c)", "clips: 1 (\u96ea)"), clips({"d/a": 20, "d/b c": 20, "d/\u96ea": 20}), code=0),
    Command(FROM, ("clips: 1 (b c)", "clips: 1 (\u96ea)"), clips({"d/a": 20, "d/b c": 20, "d/\u96ea": 20}), code=0),
    Command(FROM, ("the name 'a\\nb/0.png' holds control characters",), clips(NEWLINE)),
    Command(
        FROM,
        ("the name 'caf\\udce9/1.png' is not UTF-8",),
        both(clips(THREE), named_in_latin_1("d/caf\xe9/1.png", image())),
    ),
    Command(FROM, ("'\\udce9.png' is not UTF-8",), named_in_latin_1("d/\xe9.png", image())),
    Command("prepare video --from t.tar", ("clips: 1 (d/a)",), tar("t.tar", FRAMES), code=0),
    Command("prepare video --from t.tar", ("points outside the archive",), tar("t.tar", {"../d/a/1.png": image()})),
    Command(
        "prepare video --from t.tar",
        ("'/d/a/1.png' points outside the archive",),
        tar("t.tar", {"/d/a/1.png": image()}),
    ),
    Command(
        "prepare video --from t.tar", ("not a plain file",), tar("t.tar", {"d/a/1.png": b""}, kind=tarfile.SYMTYPE)
    ),
    Command(
        "prepare video --from t.tar", ("not a plain file",), tar("t.tar", {"d/a/1.png": b""}, kind=tarfile.CHRTYPE)
    ),
    Command("prepare video --from t.tar", ("holds no .png",), tar("t.tar", {})),
    Command(
        "prepare video --from t.tar",
        ("'d/caf\\udce9/1.png' is not UTF-8",),
        tar("t.tar", {"d/caf\udce9/1.png": image()}),
    ),
    Command(
        "prepare video --from t.tgz",
        ("ended before the end-of-stream",),
        both(tar("t.tgz", FRAMES, mode="w:gz"), cut("t.tgz", 0.7)),
    ),
    Command(
        "prepare video --from t.tar",
        ("--from t.zip: video 't.zip' cannot be read as a video",),
        both(tar("t.tar", FRAMES), cut("t.tar", 0.7)),
    ),
    Command(
        "prepare video --from t.zip",
        ("--from t.zip: video 't.zip' cannot be read as a video",),
        files({"t.zip": b"PK\x03\x04" + bytes(40)}),
    ),
    Command("prepare video --from v.avi", ("--from v.avi does not exist",)),
    Command("prepare file", ("source must be one of photos, video, digits, cifar10,",)),
    Command(
        "prepare video --from v.avi", ("--from v.avi: video 'v.avi' cannot be read as a video",), files({"v.avi": b""})
    ),
    Command(
        "prepare video --from v.avi",
        ("--from v.avi: video 'v.avi' cannot be read as a video",),
        files({"v.avi": b"RIFF" + bytes(100)}),
    ),
    Command("prepare video --from v.png", ("has 1 frames",), files({"v.png": image()})),
    Command(
        "prepare video --from v.avi", ("--from v.avi holds no .png, .jpg, .jpeg, .tif, .tiff, .bmp,",), folders("v.avi")
    ),
    Command("prepare video --from v.avi", ("does not exist",), link("v.avi", "v.avi")),
    Command(
        "prepare video --from v.avi",
        ("--from v.avi: clip 'v.avi' of 59 frames is the only one for",),
        video("v.avi", 59),
    ),
    Command("prepare video --from v.avi", ("clips: 1 (v.avi/frames 40 to 59)",), video("v.avi", 65), code=0),
    Command(
        "prepare video --from v.avi",
        ("--from v.avi: video 'v.avi' cannot be decoded after 39 of",),
        both(video("v.avi", 90), cut("v.avi", 0.7)),
    ),
    Command(
        "prepare video --from v.mp4",
        ("--from v.mp4: video 'v.mp4' cannot be read as a video",),
        both(video("v.mp4", 90), cut("v.mp4", 0.2)),
    ),
    Command(
        "prepare video --from v.mkv", ("s of the 3.6 s that it claims",), both(video("v.mkv", 90), cut("v.mkv", 0.4))
    ),
    Command(
        "prepare video --from v.avi",
        ("--from v.avi: all frames of train have one grey level",),
        video("v.avi", 65, black=True),
    ),
    Command(
        "prepare video --from d",
        ("test: 100 sequences, clips: 1 (testing_videos/1.avi)",),
        both(*(video(f"d/{n}.avi", 20) for n in ("training_videos/1", "training_videos/2", "testing_videos/1"))),
        code=0,
    ),
    Command(
        "prepare video --from d",
        ("'train1.avi' like train",),
        both(*(video(f"d/{n}.avi", 20) for n in ("train1", "train2", "test1"))),
    ),
    Command("prepare video --from d", ("holds 2 clip(s)",), both(video("d/a.avi", 20), video("d/b.avi", 20))),
    Command(
        "prepare video --from d",
        ("video 'c.avi' has 19 frames",),
        both(video("d/a.avi", 20), video("d/b.avi", 20), video("d/c.avi", 19)),
    ),
    Command(
        "run video-ut --data.source video --data.root d/v.avi --out runs/x",
        ("--data.root d/v.avi does not exist",),
        folders("d"),
        gone=("runs",),
    ),
    Command(
        "run video-ut --data.source video --out runs/x", ("--data.source video needs --data.root",), gone=("runs",)
    ),
    Command(
        "run video-ut --data.root d --out runs/x",
        ("--data.source photos takes no --data.root, got 'd'",),
        gone=("runs",),
    ),
    Command("run video-ut --data.source webcam --out runs/x", ("webcam",), gone=("runs",)),
    Command(
        RUN + " --data.prepared p",
        ("cannot write to the folder of prepared data p (Not a directory)", "--data.prepared or UNROLL_PREPARED"),
        both(clips(THREE), files({"p": "a file"})),
        gone=("runs",),
    ),
    Command(RUN + " --data.prepared ~nobody-here/p", ("--data.prepared ~nobody-here/p",), clips(THREE), gone=("runs",)),
    Command("plan video-ut --data.source video --data.root nowhere", ("--data.root nowhere does not exist",)),
]
