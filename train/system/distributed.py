"""Many processes as one run: they join, act together, stop at one step; and
checksums of arrays on any mesh."""

import contextlib
import errno
import json
import math
import os
import signal
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, UInt32

from ..config.errors import UserError, one_line
from ..config.run import Membership
from .machine import USAGE_ERROR, handling, order_collectives

# Until a dead peer is noticed. JAX's default is 100 s.
HEARTBEAT_SECONDS = 10
# For the others to start, as JAX has it; and until a line says that this process waits.
JOIN_SECONDS, REMIND_SECONDS = 300, 10
WAYS = (
    "check that all of them run, and --coordinator, --processes and --process, or"
    " --cluster"
)
ODD = 2654435769  # 2^32 over the golden ratio: consecutive multiples of it look random
# of JAX; auto: the first that it detects
CLUSTERS = ("auto", "slurm", "ompi", "mpi4py", "gcetpu", "gketpu")


def join(member: Membership) -> None:
    """Joins the other processes, before anything asks for a device. Raises UserError if
    they do not come together."""
    if member == Membership():
        return
    options = (
        _cluster_options(member)
        if member.cluster is not None
        else _explicit_options(member)
    )
    order_collectives(processes=True)
    try:
        with _in_time(member):
            jax.distributed.initialize(
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                initialization_timeout=2 * JOIN_SECONDS,
                **options,
            )
    except (RuntimeError, ValueError, KeyError, ImportError) as error:
        raise UserError(
            f"the processes did not come together ({one_line(error)[:200]}); {WAYS}"
        ) from error


@contextlib.contextmanager
def _in_time(member: Membership) -> Iterator[None]:
    """Ends the process with one line if another does not come in time. JAX ends it
    by SIGABRT."""
    of = member.cluster
    if member.coordinator is not None:
        of = f"process {member.process} at {member.coordinator}"
    joined = threading.Event()

    def watch() -> None:
        if not joined.wait(REMIND_SECONDS):
            wait = f"{JOIN_SECONDS} s at most"
            os.write(2, f"waiting for the other processes ({of}), {wait}\n".encode())
        if not joined.wait(JOIN_SECONDS - REMIND_SECONDS):
            error = f"the processes did not come together in {JOIN_SECONDS} s ({of})"
            os.write(2, f"error: {error}; {WAYS}\n".encode())
            os._exit(USAGE_ERROR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        joined.set()


def ignore_sigterm() -> None:
    """Ignores SIGTERM in one of many processes, which train no more. JAX answers it by
    a barrier of all, and holds a process there for 3 minutes if another has shut down.
    """
    if (
        jax.process_count() > 1
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def is_first() -> bool:
    """Returns True for process 0, which writes logs, metrics and reports."""
    return jax.process_index() == 0


def first_only(log: Callable[[str], None]) -> Callable[[str], None]:
    """Returns the log of process 0, and in other processes a log that drops every
    line."""
    return log if is_first() else lambda _: None


def wait_for_all(where: str) -> None:
    """Returns once every process has called it."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def all_of(holds: bool) -> bool:
    """Returns True if ``holds`` is true in every process."""
    if jax.process_count() == 1:
        return holds
    return bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def first_does(act: Callable[[], None]) -> None:
    """Acts in process 0. An error there is raised in all processes, and none waits
    for it."""
    error: Exception | None = None
    if is_first():
        try:
            act()
        except Exception as caught:
            error = caught
    if not all_of(error is None):
        raise error or UserError("process 0 failed; see its log")


def fetch(tree: Any) -> Any:
    """Returns a pytree with NumPy arrays, whole in every process."""

    def whole(leaf: Any) -> Any:
        if (
            not isinstance(leaf, jax.Array)
            or leaf.is_fully_addressable
            or leaf.is_fully_replicated
        ):
            return leaf
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(whole, tree))


class Stop:
    """Requests to end the run. ``by_hand`` is True after Ctrl-C in this process."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.by_hand = False

    def ask(self) -> None:
        """Asks the only process to end after the current step."""
        self._requested.set()

    def interrupt(self) -> None:
        """Asks as Ctrl-C does. Of many processes, JAX passes a SIGTERM on to the
        others."""
        self.by_hand = True
        with contextlib.suppress(OSError):  # Python's own streams may be in use
            os.write(
                2,
                b"\nCtrl-C: ending as soon as this step is saved; a second one ends at"
                b" once\n",
            )
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.ask()

    def at(self, step: int) -> bool:
        """Returns True if the run ends after this step. All processes call it after
        each step and get one answer."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._requested.is_set()


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C ask to stop within the context. Of many processes, JAX
    stops all at one step."""
    stop = Stop()
    with contextlib.ExitStack() as handlers:
        if jax.process_count() == 1:
            handlers.enter_context(handling(signal.SIGTERM, stop.ask))
        handlers.enter_context(handling(signal.SIGINT, stop.interrupt))
        yield stop


def digest(state: Any, notes: dict[str, Any]) -> list[int]:
    """Returns checksums of a state's arrays, in tree order and on any mesh, and of its
    notes without the checksum. Any change of one element changes the first: sums are
    modulo 2^32, and an element's factor is odd. Sums do not depend on their order, so
    each device sums its part.
    """
    contents = {name: value for name, value in notes.items() if name != "digest"}
    return [
        int(fetch(_checksum(jax.tree.leaves(state)))),
        zlib.crc32(json.dumps(contents, sort_keys=True).encode()),
    ]


def weights_checksum(weights: Any) -> int | None:
    """Returns the CRC-32 of a pytree of NumPy arrays with their paths and shapes,
    or None if it is empty."""
    checksum = None
    for path, leaf in jax.tree.leaves_with_path(weights):
        named = f"{jax.tree_util.keystr(path)}{leaf.shape}".encode()
        checksum = zlib.crc32(
            np.ascontiguousarray(leaf).data, zlib.crc32(named, checksum or 0)
        )
    return checksum


@jax.jit
def _checksum(leaves: list[Array]) -> UInt32[Array, ""]:
    total = jnp.zeros((), jnp.uint32)
    for leaf in leaves:
        whole = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
        unsigned = jnp.dtype(f"uint{8 * min(whole.dtype.itemsize, 4)}")
        bits = jax.lax.bitcast_convert_type(whole, unsigned).astype(jnp.uint32)
        place = jnp.zeros(bits.shape, jnp.uint32)
        for axis in range(bits.ndim):
            stride = jnp.uint32(math.prod(bits.shape[axis + 1 :]) % 2**32)
            place = place + stride * jax.lax.broadcasted_iota(
                jnp.uint32, bits.shape, axis
            )
        factor = place * jnp.uint32(2 * ODD % 2**32) + jnp.uint32(1)
        total = total * jnp.uint32(ODD) + jnp.sum(bits * factor, dtype=jnp.uint32)
    return total


def _explicit_options(member: Membership) -> dict[str, Any]:
    coordinator = member.coordinator
    processes = member.processes
    process = member.process
    if coordinator is None or processes is None or process is None:
        raise UserError(
            f"--coordinator, --processes and --process go together, got {coordinator},"
            f" {processes} and {process}"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UserError(
            "--coordinator must be HOST:PORT, with a port from 1 to 65535, got"
            f" {coordinator}"
        )
    if processes < 1 or not 0 <= process < processes:
        raise UserError(
            f"--process must be in [0, --processes), got {process} of {processes}"
        )
    # names may mean another interface
    binds = host == "localhost" or ":" in host or host.replace(".", "").isdecimal()
    if process == 0:
        _require_port(host if binds else "", int(port), coordinator)
    return {
        "coordinator_address": coordinator,
        "coordinator_bind_address": coordinator if binds else None,
        "num_processes": processes,
        "process_id": process,
        "cluster_detection_method": "deactivate",
    }


def _require_port(host: str, port: int, coordinator: str) -> None:
    """Raises UserError if process 0 cannot listen on a port. JAX crashes on one in
    use. No host: on all of them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno or errno.EADDRNOTAVAIL)
        raise UserError(
            f"--coordinator {coordinator} is not free ({reason}); pass another port, or"
            " another address"
        ) from None


def _cluster_options(member: Membership) -> dict[str, Any]:
    if member.cluster not in CLUSTERS:
        raise UserError(
            f"--cluster must be one of {', '.join(CLUSTERS)}, got {member.cluster}"
        )
    if member != Membership(cluster=member.cluster):
        raise UserError(
            "--cluster finds the processes by itself; drop it, or --coordinator,"
            " --processes and --process"
        )
    return {
        "cluster_detection_method": None if member.cluster == "auto" else member.cluster
    }
