"""`launch`: a failure ends all; the coordinator's address; clusters that JAX detects, from environment variables."""

import signal
import socket
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
from jax._src import clusters  # the detection of jax.distributed.initialize, without a connection

from tests.errors import one_line
from tests.started import environment
from unroll_jax.train.config.commands import Membership
from unroll_jax.train.system.distributed import CLUSTERS, join
from unroll_jax.train.system.machine import free_port, launch

FAILS = "import sys; sys.stderr.write('reading shard 3\\nno such shard\\n'); sys.exit(7)"
SLEEPS = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
POLITE = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)"


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


@pytest.mark.parametrize(
    ("numbers", "child", "code"),
    [([signal.SIGTERM], POLITE, 0), ([signal.SIGINT], POLITE, 130), ([signal.SIGINT, signal.SIGINT], DEAF, 130)],
    ids=("a preempted run saves and ends with 0", "Ctrl-C", "a second Ctrl-C kills"),
)
def test_signals_go_to_all(numbers, child, code):
    child = child.replace("time.sleep", "print('up', flush=True); time.sleep")
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
    address, at_its_end = f"127.0.0.1:{free_port()}", tmp_path / "at its end"
    program = """
        import os, signal, sys, time
        from pathlib import Path
        from unroll_jax.train.config.commands import Membership
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
    command = [sys.executable, "-c", textwrap.dedent(program), address, str(at_its_end)]
    processes = [subprocess.Popen([*command, str(number)], env=environment()) for number in (0, 1)]
    try:
        assert [process.wait(timeout=90) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


def test_the_coordinator_listens_on_the_address_that_it_is_given(monkeypatch):
    given = {}
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("jax.distributed.initialize", lambda **options: given.update(options))
    for coordinator, is_bound in (("127.0.0.1:5000", True), ("[::1]:5000", True), ("node0:5000", False)):
        join(Membership(coordinator, 2, 1))
        assert given["coordinator_address"] == coordinator
        assert given["coordinator_bind_address"] == (coordinator if is_bound else None)


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
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-3", "JOB_COMPLETION_INDEX": "3"}


@pytest.fixture
def detect(monkeypatch):
    """Returns the address, number of processes, number of this one and devices that a name of --cluster leads to."""

    def detect(name, environment):
        options = {}
        for variable, value in ({"XLA_FLAGS": ""} | environment).items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr("jax.distributed.initialize", lambda **given: options.update(given))
        join(Membership(cluster=name))
        method = options["cluster_detection_method"]
        return clusters.ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, method, None)

    return detect


@pytest.mark.parametrize(
    ("environment", "name", "host"),
    [(SLURM, "slurm", "node003"), (OPEN_MPI, "ompi", "10.0.0.7")],
    ids=("slurm", "ompi"),
)
def test_a_cluster_tells_where_the_first_process_is_and_which_one_this_is(environment, name, host, detect):
    for named in (name, "auto"):
        assert detect(named, environment) == (f"{host}:61441", 4, 3, [1])


def test_kubernetes_tells_the_first_pod_of_an_indexed_job(detect, monkeypatch):
    labels = {"job-name": "train"}
    owner = SimpleNamespace(controller=True, kind="Job")
    metadata = SimpleNamespace(labels=labels, owner_references=[owner])
    pod = SimpleNamespace(metadata=metadata, spec=SimpleNamespace(subdomain="pods"))
    job = SimpleNamespace(metadata=SimpleNamespace(name="train", labels={}), spec=SimpleNamespace(parallelism=4))
    core = SimpleNamespace(list_namespaced_pod=lambda **_: SimpleNamespace(items=[pod]))
    batch = SimpleNamespace(read_namespaced_job=lambda **_: job)
    exceptions = SimpleNamespace(ApiException=ValueError)
    client = SimpleNamespace(CoreV1Api=lambda: core, BatchV1Api=lambda: batch, exceptions=exceptions)
    package = SimpleNamespace(config=SimpleNamespace(load_incluster_config=lambda: None), client=client)
    monkeypatch.setitem(sys.modules, "kubernetes", package)
    monkeypatch.setattr(clusters.K8sCluster, "_namespace", lambda: "default")
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.0.0.3")
    assert detect("auto", KUBERNETES) == ("train-0.pods:55527", 4, 3, None)


def test_every_name_is_one_that_jax_knows():
    assert set(CLUSTERS) - {"auto"} <= {cluster.name for cluster in clusters.ClusterEnv._cluster_types}
