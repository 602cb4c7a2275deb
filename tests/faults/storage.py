"""Faults of disks, signals and damaged run folders."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: list[Fault] = [
    Fault(
        "a run is finished before its last checkpoint is on the disk",
        "train/loop.py",
        "                self.checkpoints.wait()  # a status must not say more than the disk holds\n",
        "",
        "tests/train/test_storage.py",
    ),
    Fault(
        "what a failed save left stays",
        "train/checkpoint.py",
        "                shutil.rmtree(left, ignore_errors=True)\n",
        "                pass\n",
        "tests/train/test_storage.py",
    ),
    Fault(
        "a checkpoint that is not there is said to be kept",
        "train/loop.py",
        'where = "no checkpoint was saved before" if kept is None else',
        'where = "the checkpoint of step 0 is kept" if kept is None else',
        "tests/train/test_run_options.py",
    ),
    Fault(
        "the status of a run that a full disk ended stays at running",
        "train/system/run_files.py",
        "        overwrite(path, content)\n",
        "        raise\n",
        "tests/train/test_storage.py",
    ),
    Fault(
        "a run without room claims its folder",
        "train/runs.py",
        "    elif not exists:\n        check_room(",
        "    elif False:\n        check_room(",
        "tests/train/test_storage.py",
    ),
    Fault(
        "--out is checked in the home folder and written elsewhere",
        "train/system/storage.py",
        "    return folder\n",
        "    return Path(out)\n",
        "tests/train/test_runs.py",
    ),
    Fault(
        "lost rows of metrics are told at every resume",
        "train/metrics.py",
        "    if message in messages:\n        return messages\n",
        "",
        "tests/train/test_loop.py",
    ),
    Fault(
        "room on the disk is not looked at",
        "train/system/storage.py",
        "if disk.total and disk.free < size:",
        "if False:",
        "tests/train/test_storage.py",
    ),
    Fault(
        "an evaluation reads its data before it looks at its folder",
        "train/runs.py",
        '    first_does(lambda: require_writable(folder, f"run folder {folder}", AGAIN))\n',
        "",
        "tests/train/test_storage.py",
    ),
    Fault(
        "a trial that a full disk ended counts as a bad one",
        "train/search/trials.py",
        "        except StorageError:  # says nothing of what the trial tried\n            raise\n",
        "",
        "tests/train/search/test_trials.py",
    ),
    Fault(
        "a report is half an old one and half a new one on a full disk",
        "train/system/storage.py",
        "            partials[name].write_bytes(content)\n",
        "            partials[name].write_bytes(content)\n            partials[name].replace(folder / name)\n"
        "            partials[name].write_bytes(content)\n",
        "tests/train/test_storage.py",
    ),
    Fault(
        "a request to end is an error like another, and a checkpoint being read is taken for damaged",
        "train/config/errors.py",
        "class Interrupted(BaseException):",
        "class Interrupted(Exception):",
        "tests/train/test_interrupts.py",
    ),
    Fault(
        "a second Ctrl-C is handled like the first",
        "train/system/interrupts.py",
        "            signal.signal(number, signal.SIG_DFL)\n",
        "            pass\n",
        "tests/train/test_interrupts.py",
    ),
    Fault(
        "a request to end that comes in a finalizer is lost",
        "train/system/interrupts.py",
        "    LATER[-1].start()\n",
        "",
        "tests/train/test_interrupts.py",
    ),
    Fault(
        "a run ends at Ctrl-C with the exit code of a preempted one",
        "train/loop.py",
        ", CTRL_C)\n",
        ")\n",
        "tests/train/test_interrupts.py",
    ),
    Fault(
        "rows of metrics that are gone are not counted",
        "train/metrics.py",
        "        self.lost = _lost_steps(kept, after_step)\n",
        "        self.lost = 0\n",
        "tests/train/test_metrics.py",
    ),
    Fault(
        "a checkpoint without notes is passed over in silence",
        "train/checkpoint.py",
        "for step in [step for step, score in scores.items() if score == UNREADABLE]:\n            self._log(",
        "for step in [step for step, score in scores.items() if score == UNREADABLE]:\n            str(",
        "tests/hostile/test_runs.py",
    ),
    Fault(
        "a switch stands for a number in a configuration",
        "train/config/fields.py",
        "    return isinstance(value, kind or hint) and (hint is bool) == isinstance(value, bool)\n",
        "    return isinstance(value, kind or hint)\n",
        "tests/hostile/test_commands.py",
    ),
    Fault(
        "--overwrite deletes what is no run",
        "train/runs.py",
        "    if not _is_run(folder / name):\n",
        "    if False:\n",
        "tests/train/test_run_folders.py",
    ),
    Fault(
        "--overwrite deletes a run that another process trains",
        "train/runs.py",
        "    with locked(folder):\n        for entry",
        "    if folder:\n        for entry",
        "tests/train/test_run_folders.py",
    ),
]
