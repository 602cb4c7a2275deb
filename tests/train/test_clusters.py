"""`--cluster` takes what JAX detects: dry runs of SLURM, Open MPI and Kubernetes from their environment alone."""

import sys
from types import SimpleNamespace

import pytest
from jax._src import clusters  # the detection of jax.distributed.initialize, without a connection

from unroll_jax.train.config.commands import Membership
from unroll_jax.train.system.distributed import CLUSTERS, join

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


@pytest.mark.parametrize("name", ["slurm", "auto"])
def test_slurm_tells_the_first_node_and_the_task(name, detect):
    assert detect(name, SLURM) == ("node003:61441", 4, 3, [1])


@pytest.mark.parametrize("name", ["ompi", "auto"])
def test_open_mpi_tells_the_launcher_and_the_rank(name, detect):
    assert detect(name, OPEN_MPI) == ("10.0.0.7:61441", 4, 3, [1])


def test_kubernetes_tells_the_first_pod_of_an_indexed_job(detect, monkeypatch):
    labels = {"job-name": "train"}
    owner = SimpleNamespace(controller=True, kind="Job")
    pod = SimpleNamespace(
        metadata=SimpleNamespace(labels=labels, owner_references=[owner]), spec=SimpleNamespace(subdomain="pods")
    )
    job = SimpleNamespace(metadata=SimpleNamespace(name="train", labels={}), spec=SimpleNamespace(parallelism=4))
    core = SimpleNamespace(list_namespaced_pod=lambda **_: SimpleNamespace(items=[pod]))
    batch = SimpleNamespace(read_namespaced_job=lambda **_: job)
    client = SimpleNamespace(
        CoreV1Api=lambda: core, BatchV1Api=lambda: batch, exceptions=SimpleNamespace(ApiException=ValueError)
    )
    package = SimpleNamespace(config=SimpleNamespace(load_incluster_config=lambda: None), client=client)
    monkeypatch.setitem(sys.modules, "kubernetes", package)
    monkeypatch.setattr(clusters.K8sCluster, "_namespace", lambda: "default")
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.0.0.3")
    assert detect("auto", KUBERNETES) == ("train-0.pods:55527", 4, 3, None)


def test_every_name_is_one_that_jax_knows():
    assert set(CLUSTERS) - {"auto"} <= {cluster.name for cluster in clusters.ClusterEnv._cluster_types}
