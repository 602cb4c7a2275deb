"""Checkpoints: kept, read back bit for bit, set aside when damaged; and the checksum
of a state."""

import gc
import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks import assert_same_bits
from tests.train.commands import flip_a_bit
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.system.distributed import digest
from unroll_jax.train.system.files import steps_in

STATE = jax.device_put(
    {"params": np.arange(1000.0), "duals": (np.int32(0), np.ones((3, 4)))}
)
NOTES = {"train_seconds": 1.5, "messages": ["step 2: all well"]}
SCORES = {10: 1.0, 20: 5.0, 30: 2.0, 40: 3.0, 50: 0.0}


def _state(step):
    return jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf) + step, STATE))


def _save(folder, scores, log=None):
    with Checkpoints(folder / "checkpoints", log=(log or []).append) as checkpoints:
        for step, score in scores.items():
            checkpoints.save(step, _state(step), NOTES, score=score)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    _save(folder, SCORES)
    return folder


@pytest.fixture
def saved(saved_once, tmp_path):
    return shutil.copytree(saved_once / "checkpoints", tmp_path / "checkpoints")


def _newest(folder, log, **options):
    with Checkpoints(folder / "checkpoints", log=log.append, **options) as checkpoints:
        return checkpoints.newest(STATE)


def test_the_two_newest_and_the_best_are_kept(tmp_path, saved):
    assert steps_in(saved) == [20, 40, 50]
    unfinished = saved / "60.orbax-checkpoint-tmp"
    shutil.copytree(saved / "40", unfinished)
    _save(tmp_path, {60: 1.0, 70: 0.5})
    assert not unfinished.exists(), "the remains of a killed save are deleted"
    assert steps_in(saved) == [20, 60, 70]
    with Checkpoints(saved) as checkpoints:
        assert checkpoints.best(STATE)[0] == 20


def test_a_checkpoint_comes_back_bit_for_bit_though_donated(tmp_path):
    add_one = lambda state: jax.tree.map(lambda leaf: leaf + 1, state)
    step = jax.jit(add_one, donate_argnums=0)
    assert _newest(tmp_path, []) is None
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        with pytest.raises(UserError, match="no checkpoint"):
            checkpoints.best(STATE)
        state = _state(50)
        checkpoints.save(1, state, NOTES, score=0.0)
        for _ in range(20):
            state = step(state)
    number, state, notes = _newest(tmp_path, [])
    assert number == 1
    assert NOTES.items() <= notes.items()
    assert_same_bits(state, _state(50))


def test_remains_are_gone_when_checkpoints_are_open(tmp_path):
    for number in range(300):
        (tmp_path / f"{number}.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    with Checkpoints(tmp_path):
        assert not list(tmp_path.glob("*orbax*"))


def test_a_folder_that_cannot_be_made_leaves_no_thread_waiting(tmp_path):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        folder.rmdir()
        folder.touch()
        with pytest.raises(NotADirectoryError):
            checkpoints.save(1, STATE, NOTES, score=0.0)
    kinds = {type(thread).__module__ for thread in threading.enumerate()}
    assert not [kind for kind in kinds if kind.startswith("orbax.")]


def _truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _edit(path):
    path.write_bytes(path.read_bytes().replace(b"1.5", b"2.5"))


DAMAGE = [
    _truncate,
    _edit,
    *(pytest.param(act, marks=pytest.mark.slow) for act in (Path.unlink, flip_a_bit)),
]


# On a busy machine, reads of TensorStore end after Orbax has closed the loop that waits
# for them.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_costs_a_checkpoint_and_never_gives_other_weights(
    saved_once, tmp_path, capfd, damage
):
    files = [
        path.relative_to(saved_once)
        for path in (saved_once / "checkpoints" / "50").rglob("*")
        if path.is_file()
    ]
    assert len(files) > 10
    set_aside = []
    for number, file in enumerate(files):
        folder, log = tmp_path / str(number), []
        shutil.copytree(saved_once / "checkpoints", folder / "checkpoints")
        damage(folder / file)
        step, state, notes = _newest(folder, log)
        if step == 40:
            set_aside.append(file.name)
            (line,) = log
            assert "checkpoint 50 is damaged" in line, file
            assert (folder / "damaged" / "50" / "notes").is_dir(), (
                "nothing is thrown away"
            )
            assert steps_in(folder / "checkpoints") == [20, 40], file
        else:
            assert (step, log) == (50, []), file
        assert NOTES.items() <= notes.items(), file
        assert_same_bits(state, _state(step))
    assert set_aside, "the case damages nothing"
    gc.collect()  # Orbax reports unfinished reads when they are freed
    assert "Traceback" not in capfd.readouterr().err


def test_a_copy_under_another_step_is_not_read(saved):
    log = []
    shutil.copytree(saved / "20", saved / "60")
    with Checkpoints(saved, read_only=True, log=log.append) as checkpoints:
        assert checkpoints.newest(STATE).step == 50
        assert_same_bits(checkpoints.best(STATE).state, _state(20))
    assert "it is a copy of the checkpoint of step 20" in log[0]


def test_when_all_are_damaged_they_are_kept(tmp_path, saved):
    for path in saved.glob("*/notes/metadata"):
        _truncate(path)
    log = []
    assert _newest(tmp_path, log) is None
    assert "starting again from step 0" in log[-1]
    assert steps_in(tmp_path / "damaged") == [20, 40, 50]


def test_the_best_falls_back_and_reading_changes_nothing(tmp_path, saved):
    _truncate(saved / "20" / "state" / "_METADATA")
    unfinished = saved / "60.orbax-checkpoint-tmp"
    unfinished.mkdir()
    before, log = sorted(tmp_path.rglob("*")), []
    with Checkpoints(saved, read_only=True, log=log.append) as checkpoints:
        assert checkpoints.best(STATE)[0] == 40
    assert sorted(tmp_path.rglob("*")) == before
    assert "checkpoint 20 cannot be read" in log[0]
    with Checkpoints(saved, log=log.append) as checkpoints:
        assert checkpoints.best(STATE)[0] == 40
    assert "checkpoint 20 is damaged" in log[1]


def test_the_best_is_read_while_the_run_deletes_others(tmp_path, saved, monkeypatch):
    verify, log = Checkpoints._verify, []

    def deleted(checkpoints, step, like):
        monkeypatch.setattr(Checkpoints, "_verify", verify)
        _save(tmp_path, {60: 9.0, 70: 0.0})
        for old in (20, 40, 50):
            shutil.rmtree(saved / str(old), ignore_errors=True)
        return verify(checkpoints, step, like)

    with Checkpoints(saved, read_only=True, log=log.append) as checkpoints:
        monkeypatch.setattr(Checkpoints, "_verify", deleted)
        assert checkpoints.best(STATE).step == 60
    assert log == []


MISFITS = [
    (
        {**STATE, "params": jax.device_put(np.zeros((10, 100)))},
        r"params is \(1000,\) there, \(10, 100\) here",
    ),
    ({"params": STATE["params"]}, r"duals/0 is \(\) there, None here"),
    (
        {**STATE, "params": jax.ShapeDtypeStruct((1000,), np.float64)},
        r"params is float32 there, float64 here; run with JAX_ENABLE_X64 as in its",
    ),
]


def test_checkpoints_of_another_model_are_refused_and_stay(tmp_path, saved, capfd):
    log = []
    with Checkpoints(saved, log=log.append) as checkpoints:
        for like, message in MISFITS:
            for read in (checkpoints.best, checkpoints.newest):
                with pytest.raises(UserError, match=f"is of another model: {message}"):
                    read(like)
    assert (log, capfd.readouterr().err, steps_in(saved)) == ([], "", [20, 40, 50])


@pytest.mark.parametrize("left", ["notes", "state", None])
def test_a_checkpoint_half_deleted_by_a_kill_is_no_hindrance(tmp_path, saved, left):
    half = saved / "10"
    (saved / "40").rename(half)
    for path in sorted(half.rglob("*"), reverse=True):
        if left is None or left not in path.parts:
            path.rmdir() if path.is_dir() else path.unlink()
    log = []
    assert _newest(tmp_path, log)[0] == 50
    _save(tmp_path, {60: 0.0}, log)
    assert steps_in(saved) == [20, 50, 60]
    assert log == []


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16", "float64"])
def test_one_bit_anywhere_changes_the_checksum_and_so_do_notes(dtype):
    state = np.arange(6).astype(jnp.dtype(dtype))
    whole = digest(state, {"score": 1.0})
    for bit in range(0, 8 * state.nbytes, 3):
        content = bytearray(state.tobytes())
        content[bit // 8] ^= 1 << bit % 8
        changed = np.frombuffer(bytes(content), np.uint8).view(state.dtype)
        assert digest(changed, {"score": 1.0})[0] != whole[0]
    assert digest(state, {"score": 2.0}) != whole
    assert digest(state, {"score": 1.0, "digest": whole}) == whole
