import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from unroll_jax.train.system.launch import free_port, launch

ENDS = "import sys; sys.exit(0)"
FAILS = "import sys; sys.stderr.write('reading shard 3\\nno such shard\\n'); sys.exit(7)"
SLEEPS = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def python(*programs: str) -> list[list[str]]:
    return [[sys.executable, "-c", program] for program in programs]


def test_all_well_is_0(capfd):
    assert launch(python(ENDS, ENDS, ENDS)) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_fails_ends_the_others_and_is_named(place, capfd):
    programs = [SLEEPS, SLEEPS, SLEEPS]
    programs[place] = FAILS
    began = time.monotonic()
    assert launch(python(*programs)) == 7
    assert time.monotonic() - began < 10
    errors = capfd.readouterr().err
    assert f"process {place} of 3" in errors
    assert "exit code 7" in errors
    assert "no such shard" in errors


def test_a_signal_is_named_and_its_exit_code_is_the_shells(capfd):
    assert launch(python(SLEEPS, DIES)) == 128 + signal.SIGKILL
    assert "was ended by SIGKILL; it wrote nothing to stderr" in capfd.readouterr().err


def test_one_that_does_not_hear_is_killed_after_the_grace_time(capfd):
    waits = DEAF.replace("time.sleep(60)", "open('/dev/null').close(); time.sleep(60)")
    late = f"import time; time.sleep(1.0); {FAILS}"
    began = time.monotonic()
    assert launch(python(waits, late), grace=0.5) == 7
    assert 1.0 < time.monotonic() - began < 10
    assert "process 0 did not end in 0 s and was killed" in capfd.readouterr().err


def test_the_culprits_line_comes_last_and_alone(capfd):
    """As JAX does, the first process tells at length that it is aborted."""
    noisy = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('F1122 aborted\\n' * 17)); "
    starts = "sys.stderr.write('ready\\n'); sys.stderr.flush(); "
    assert launch(python(f"{noisy}{starts}time.sleep(60)", f"import time; time.sleep(0.5); {DIES}")) == 137
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "ready"
    assert len(lines) == 2
    assert "process 1 of 2" in lines[1]


def test_a_mistake_that_all_processes_refuse_is_told_once_in_the_first_ones_words(capfd):
    refuses = "import sys, time; time.sleep({}); sys.stderr.write('error: {}\\n'); sys.exit(2)"
    programs = (refuses.format(0.5, "--steps must be above 0"), refuses.format(0.0, "process 0 refused"))
    assert launch(python(*programs)) == 2
    assert capfd.readouterr().err == "error: --steps must be above 0\n"


def test_a_mistake_of_another_process_is_its_own_line(capfd):
    refuses = "import sys; sys.stderr.write('error: no such shard\\n'); sys.exit(2)"
    assert launch(python(SLEEPS, refuses)) == 2
    assert capfd.readouterr().err == "error: no such shard\n"


def test_only_the_first_ones_output_is_shown(capfd):
    assert launch(python("print('zero')", "print('one')")) == 0
    assert capfd.readouterr().out == "zero\n"


def test_sigterm_goes_to_all_and_those_that_end_well_make_it_0():
    """As a preempted run does: it saves and ends with 0."""
    polite = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True)"
    program = f"""
        import sys
        from unroll_jax.train.system.launch import launch
        child = [sys.executable, "-c", {polite + "; time.sleep(60)"!r}]
        sys.exit(launch([child, child]))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)  # the second one is up as well
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    process.stdout.close()


def test_a_free_port_can_be_bound():
    port = free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        assert server.getsockname() == ("127.0.0.1", port)
