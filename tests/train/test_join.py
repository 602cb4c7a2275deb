"""Processes that join: the coordinator's address, a wait in time, clusters that JAX
detects from the environment."""

import socket
import subprocess
import sys
import textwrap

import pytest

# the detection of jax.distributed.initialize, without a connection
from jax._src import clusters

from tests.errors import one_line
from tests.started import environment, free_port
from unroll_jax.train.config.run import Membership
from unroll_jax.train.system.distributed import CLUSTERS, join


def started(program: str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def initialised(monkeypatch):
    options = {}
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(
        "jax.distributed.initialize", lambda **given: options.update(given)
    )
    return options


@pytest.mark.slow
def test_sigterm_after_training_holds_up_no_process(
    tmp_path,
):
    """JAX answers by a barrier of all, where a process waits 3 minutes for one that
    has shut down."""
    program = """
        import os, signal, sys, time
        from pathlib import Path
        from unroll_jax.train.config.run import Membership
        from unroll_jax.train.system.distributed import ignore_sigterm, join
        address, at_its_end, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
        join(Membership(address, 2, number))
        ignore_sigterm()
        if number == 1:
            at_its_end.touch()
            sys.exit(0)
        while not at_its_end.exists():
            time.sleep(0.05)
        time.sleep(2.0)  # the other shuts down
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2.0)  # JAX looks every second
    """
    address = f"127.0.0.1:{free_port()}"
    processes = [
        started(program, address, str(tmp_path / "at its end"), str(number))
        for number in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=90)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], errors
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_the_coordinator_listens_on_its_address(initialised, monkeypatch):
    for coordinator, is_bound in (
        ("127.0.0.1:5000", True),
        ("[::1]:5000", True),
        ("node0:5000", False),
    ):
        join(Membership(coordinator, 2, 1))
        assert initialised["coordinator_address"] == coordinator
        assert initialised["coordinator_bind_address"] == (
            coordinator if is_bound else None
        )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with one_line(f"--coordinator {address} is not free"):
            join(Membership(address, 2, 0))

    def fail(**options):
        raise RuntimeError("another number of processes\nin many lines")

    monkeypatch.setattr("jax.distributed.initialize", fail)
    with one_line("did not come together .*another number of processes"):
        join(Membership("127.0.0.1:5000", 2, 1))


def test_a_coordinator_on_loopback_answers_only_there():
    port, other = free_port(), free_port()
    program = f"""
        import jax, socket
        from unroll_jax.train.config.run import Membership
        from unroll_jax.train.system import distributed

        def answers(host):
            try:
                socket.create_connection((host, {port}), timeout=1.0).close()
            except OSError:
                return False
            return True

        distributed.join(Membership("127.0.0.1:{port}", 1, 0))
        print([answers(host) for host in ("127.0.0.1", "127.0.0.2", "::1")], flush=True)
        jax.distributed.shutdown()
        distributed.REMIND_SECONDS, distributed.JOIN_SECONDS = 0.5, 2
        distributed.join(Membership("127.0.0.1:{other}", 2, 1))
    """
    process = started(program)
    printed, errors = process.communicate()
    assert (printed, process.returncode) == ("[True, False, False]\n", 2)
    waits, error = errors.splitlines()[:2]
    assert waits.startswith(
        f"waiting for the other processes (process 1 at 127.0.0.1:{other}"
    )
    assert error.startswith("error: the processes did not come together in 2 s")


SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "node[003,005-007]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.7,10.1.0.7:3491",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.mark.parametrize(
    ("name", "variables", "host"),
    [("slurm", SLURM, "node003"), ("ompi", OPEN_MPI, "10.0.0.7")],
)
def test_a_cluster_names_the_first_process_and_this(
    name, variables, host, initialised, monkeypatch
):
    assert set(CLUSTERS) - {"auto"} <= {
        cluster.name for cluster in clusters.ClusterEnv._cluster_types
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    for named in (name, "auto"):
        join(Membership(cluster=named))
        method = initialised["cluster_detection_method"]
        detected = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, method, None
        )
        assert detected == (f"{host}:61441", 4, 3, [1])
