"""A real Ray cluster whose nodes are machines of a network, and storage that they find."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.services import BIN, wait_until_ray_takes_jobs, wait_until_up
from tests import commands
from tests.nodes.network import Machine, Network
from tests.waiting import wait_for

MARKS = [
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.timeout(500),
    pytest.mark.skipif(
        not shutil.which("ip") or os.geteuid() != 0, reason="needs iproute2, as root"
    ),
]
"""Of tests that need such a cluster."""

ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {
    # As clusters do it by default; nodes that join a head are not asked whether they do.
    "RAY_AUTH_MODE": "token",
    # A node that is cut off is missed after 5 s, not after half a minute.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
_WITHIN_S = 90
GRACE_S = 30.0
"""The grace that a pod of Kubernetes has, if nobody says otherwise."""


class Node:
    """A node of the cluster: a machine, and `ray start` on it."""

    def __init__(
        self, machine: Machine, command: list[str], log: Path, environment: dict[str, str]
    ) -> None:
        self.machine = machine
        self.log = log
        there = machine.command(*command)
        self.process = commands.begin(there, log, "wb", env=environment, start_new_session=True)

    @property
    def runs(self) -> bool:
        """Whether it was not killed, and has not ended by itself, as one that was cut off does."""
        return self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        return self.machine.processes()

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.process.kill()
        self.process.wait()

        def is_dead() -> bool:
            left = self.processes()
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return not left

        wait_for(is_dead, _WITHIN_S, lambda: f"{self.processes()} cannot be killed")

    def evict(self) -> None:
        """As Kubernetes and Docker end it: SIGTERM to its first process, SIGKILL after a grace."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        self.kill()


class RayCluster:
    """A head without CPUs for workers, and nodes that have one each.

    The tests of a file share it: each says how many nodes it needs.
    """

    def __init__(self, network: Network, folder: Path, environment: dict[str, str]) -> None:
        self._network = network
        self._environment = {
            **os.environ,
            **_ENVIRONMENT,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            **environment,
        }
        self._folder = folder
        self.nodes: list[Node] = []
        self._head = network.machine()
        self.dashboard = f"http://{self._head.address}:8265"
        self._gcs = f"{self._head.address}:6379"
        self._start_head()

    def _start_head(self) -> None:
        """Start the head, also again at the same address when it was killed."""
        self.head = Node(
            self._head,
            [
                *(str(BIN / "ray"), "start", "--head", "--block", "--port=6379", "--num-cpus=0"),
                *(f"--node-ip-address={self._head.address}", "--dashboard-host=0.0.0.0"),
                *(f"--temp-dir={self._folder}/ray", "--disable-usage-stats"),
            ],
            self._folder / "head.log",
            self._environment,
        )

    def wait_until_it_takes_jobs(self) -> None:
        """Wait until the head takes jobs. Raises RuntimeError if it never does."""
        agent, within = f"{self._head.address}:52365", self._head.command
        wait_until_ray_takes_jobs(
            self._gcs, agent, self.head.log, self.head.process, self._environment, within
        )

    def have(self, count: int) -> None:
        """Have just so many nodes, whatever became of those of the test before."""
        running = [node for node in self.nodes if node.runs]
        for node in running[count:]:
            node.kill()
            self.wait_until_missed(node)
        # One after the other: Ray's nodes of one machine choose their sockets without a lock.
        for _ in range(count - len(running)):
            self.add()

    def add(self) -> Node:
        """One more node; it is there when this returns."""
        machine = self._network.machine()
        node = Node(
            machine,
            [
                *(str(BIN / "ray"), "start", "--block", f"--address={self._gcs}"),
                *(f"--node-ip-address={machine.address}", "--num-cpus=1"),
            ],
            self._folder / f"node-{len(self.nodes)}.log",
            self._environment,
        )
        self.nodes.append(node)
        wait_until_up(lambda: "ALIVE" in self._shown(node), node.log, node.process)
        return node

    def kill(self) -> None:
        """Kill the head and then all nodes: a job shall not see a node go before its head."""
        with ExitStack() as all_of_them:
            for node in reversed([self.head, *self.nodes]):
                all_of_them.callback(node.kill)

    def start_again(self) -> None:
        """Start the head again when all was killed; who needs nodes adds them."""
        self._start_head()
        self.wait_until_it_takes_jobs()

    def drain(self, node: Node) -> None:
        """Announce that the node will be taken away."""
        found = self._shown(node)[1]
        reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test")
        deadline = ("--deadline-remaining-seconds", "120")
        self.ray("drain-node", "--address", self._gcs, "--node-id", found, *reason, *deadline)

    def wait_until_missed(self, node: Node) -> None:
        """Wait until the head takes the node for dead."""
        wait_for(lambda: "DEAD" in self._shown(node), _WITHIN_S, every_s=0.5)

    def _shown(self, node: Node) -> list[str]:
        """What the head's list of nodes says of one; nothing if it does not have it yet."""
        lines = map(str.split, self.ray("list", "nodes").splitlines())
        return next((words for words in lines if node.machine.address in words), [])

    def ray(self, *command: str) -> str:
        """What a command of Ray's says on the head."""
        done = commands.succeed(
            self.head.machine.command(str(BIN / "ray"), *command),
            env={**self._environment, "RAY_ADDRESS": self._gcs},
        )
        return done.stdout


@dataclass(frozen=True)
class Place:
    """A place on the S3 server, and by which address the machines find that."""

    storage: str
    environment: dict[str, str]


@contextmanager
def ray_cluster_on(network: Network, environment: dict[str, str]) -> Iterator[RayCluster]:
    """A cluster without nodes as yet, whose processes have this in their environment."""
    # Ray's sockets need a short path.
    folder = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
    cluster = RayCluster(network, folder, environment)
    try:
        cluster.wait_until_it_takes_jobs()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replaced_on_failure(cluster: RayCluster) -> Iterator[None]:
    """What a test that fails leaves on the cluster does not reach the next one."""
    try:
        yield
    except BaseException:
        cluster.kill()
        cluster.start_again()
        raise
