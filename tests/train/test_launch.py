"""`launch` ends all processes when one fails, with its exit code; the coordinator listens where it is told."""

import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from tests.errors import one_line
from tests.started import environment
from unroll_jax.train.config.commands import Membership
from unroll_jax.train.system.distributed import join
from unroll_jax.train.system.machine import free_port, launch

ENDS = "import sys; sys.exit(0)"
FAILS = "import sys; sys.stderr.write('reading shard 3\\nno such shard\\n'); sys.exit(7)"
SLEEPS = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
POLITE = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "


def python(*programs: str) -> list[list[str]]:
    return [[sys.executable, "-c", program] for program in programs]


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_fails_ends_the_others_and_is_named(place, capfd):
    programs = [SLEEPS, SLEEPS, SLEEPS]
    programs[place] = FAILS
    began = time.monotonic()
    assert launch(python(*programs)) == 7
    assert time.monotonic() - began < 10
    errors = capfd.readouterr().err.splitlines()
    assert errors[-1] == f"error: process {place} of 3 ended with exit code 7; the others were ended"
    assert any("no such shard" in line for line in errors)


def test_a_mistake_is_one_line_of_the_process_that_made_it(capfd):
    assert launch(python(SLEEPS, "import sys; sys.stderr.write('error: no such shard\\n'); sys.exit(2)")) == 2
    assert capfd.readouterr().err == "error: no such shard\n"


def test_one_that_ignores_sigterm_is_killed_after_the_grace_time():
    began = time.monotonic()
    assert launch(python(DEAF, f"import time; time.sleep(1.0); {FAILS}"), grace=0.5) == 7
    assert 1.0 < time.monotonic() - began < 10


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_go_to_all(number, code):
    """A preempted run saves and ends with 0; one that Ctrl-C ended, with 130."""
    _check_signal([number], f"{POLITE}print('up', flush=True); time.sleep(60)", code)


def test_a_second_ctrl_c_kills():
    deaf = DEAF.replace("time.sleep", "print('up', flush=True); time.sleep")
    _check_signal([signal.SIGINT, signal.SIGINT], deaf, 130)


def _check_signal(numbers, child, code):
    program = f"""
        import sys
        from unroll_jax.train.system.machine import launch
        child = [sys.executable, "-c", {child!r}]
        sys.exit(launch([child, child]))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)  # the second one is up as well
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.2)
    assert process.wait(timeout=20) == code
    process.stdout.close()


@pytest.mark.slow
def test_sigterm_after_training_to_one_while_the_other_is_at_its_end_holds_up_neither(tmp_path):
    """JAX answers by a barrier of all, where a process waits 3 minutes for one that has shut down."""
    start = f"""
        import os, signal, time
        from pathlib import Path
        from unroll_jax.train.config.commands import Membership
        from unroll_jax.train.system.distributed import ignore_sigterm, join
        at_its_end = Path({str(tmp_path / "at its end")!r})
    """
    late = """
        while not at_its_end.exists():
            time.sleep(0.05)
        time.sleep(2.0)  # the other shuts down
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2.0)  # JAX looks every second
    """
    ends, address = ("at_its_end.touch()", late), f"127.0.0.1:{free_port()}"
    processes = []
    for number, end in enumerate(reversed(ends)):
        joined = f"\njoin(Membership({address!r}, 2, {number}))\nignore_sigterm()\n"
        program = textwrap.dedent(start) + joined + textwrap.dedent(end)
        processes.append(subprocess.Popen([sys.executable, "-c", program], env=environment()))
    try:
        assert [process.wait(timeout=90) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize(
    ("coordinator", "bound"), [("127.0.0.1:5000", "127.0.0.1:5000"), ("[::1]:5000", "[::1]:5000"), ("node0:5000", None)]
)
def test_the_coordinator_listens_on_the_address_that_it_is_given(coordinator, bound, monkeypatch):
    given = {}
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("jax.distributed.initialize", lambda **options: given.update(options))
    join(Membership(coordinator, 2, 1))
    assert (given["coordinator_address"], given["coordinator_bind_address"]) == (coordinator, bound)


def test_a_coordinator_whose_port_is_in_use_is_a_line(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with one_line(f"--coordinator {address} is not free"):
            join(Membership(address, 2, 0))


def test_a_process_that_waits_for_the_others_says_so_and_ends_in_time():
    program = f"""
        from unroll_jax.train.config.commands import Membership
        from unroll_jax.train.system import distributed
        distributed.REMIND_SECONDS, distributed.JOIN_SECONDS = 0.5, 2
        distributed.join(Membership("127.0.0.1:{free_port()}", 2, 1))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 2
    waits, error = done.stderr.splitlines()[:2]
    assert waits.startswith("waiting for the other processes (process 1 at 127.0.0.1:")
    assert error.startswith("error: the processes did not come together in 2 s")


def test_a_coordinator_on_loopback_answers_there_alone():
    """A real one, asked at its address and at two others of the same machine."""
    port = free_port()
    program = f"""
        import socket
        from unroll_jax.train.config.commands import Membership
        from unroll_jax.train.system.distributed import join

        def answers(host):
            try:
                socket.create_connection((host, {port}), timeout=1.0).close()
            except OSError:
                return False
            return True

        join(Membership("127.0.0.1:{port}", 1, 0))
        print([answers(host) for host in ("127.0.0.1", "127.0.0.2", "::1")])
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[True, False, False]\n"
