"""What a cluster of the test bed is: its size, its Slurm and its folder; written beside the cluster and read back by every verb."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import socket
import tempfile
from pathlib import Path

VERSIONS = ("24.11", "22.05")
# Below the kernel's ephemeral range (32768 and up), from which srun and the step managers take theirs.
PORTS = range(12000, 30000)
RECORD = "settings.json"


class TestbedError(Exception):
    """The test bed was asked for something that cannot be, or something that should have worked did not."""

    __test__ = False


@dataclasses.dataclass(frozen=True)
class Settings:
    """One cluster.

    `racks` are blocks of topology/block, of nodes/racks nodes each (the `BlockSizes` of a GB200 NVL72 rack is 18). `cloud` nodes
    exist in the controller's books alone, powered down, in racks of the same size: enough for `sbatch --test-only`. `cpus` and
    `gpus` are pretended, per node. `port` is the controller's, the nodes take the following ones; 0 looks for free ones. `hide` are
    folders that a container does not see unless they are mounted. `lines` are added to slurm.conf as they are.
    `requeue_delay` is Slurm's pause in seconds before a requeued job may start again (cred_expire; 120 on a real cluster).
    """

    folder: Path
    version: str = VERSIONS[0]
    nodes: int = 4
    racks: int = 1
    gpus: int = 4
    cpus: int = 8
    cloud: int = 0
    port: int = 0
    requeue_delay: int = 120
    hide: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise TestbedError(f"version {self.version}: the test bed knows {', '.join(VERSIONS)}")
        if self.nodes < 1 or self.racks < 1 or self.nodes % self.racks:
            raise TestbedError(f"{self.nodes} nodes do not divide into {self.racks} racks of equal size")
        if self.version == "22.05" and (self.racks > 1 or self.cloud):
            raise TestbedError("22.05 has no topology/block: ask for one rack and no cloud nodes, or for 24.11")
        if self.cloud % self.nodes_per_rack:
            raise TestbedError(f"{self.cloud} cloud nodes do not divide into racks of {self.nodes_per_rack} nodes")

    @property
    def nodes_per_rack(self) -> int:
        """How many nodes a rack has, those of the cloud too."""
        return self.nodes // self.racks

    @property
    def blocks(self) -> bool:
        """Whether the controller is given a topology: 22.05 has none of blocks."""
        return self.version != "22.05"

    @property
    def names(self) -> list[str]:
        """The nodes that run, n0 and on."""
        return [f"n{i}" for i in range(self.nodes)]

    def save(self) -> None:
        """Write the record that the other verbs read."""
        record = {k: v for k, v in dataclasses.asdict(self).items() if k != "folder"}
        (self.folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Settings | None:
        """Give the settings of the cluster that was last started in `folder`, or None."""
        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(folder=folder, **{k: tuple(v) if isinstance(v, list) else v for k, v in record.items()})  # type: ignore[arg-type]

    def with_free_ports(self) -> Settings:
        """Choose the ports, if they are not chosen: the first of a run of nodes + 1 that nobody listens on."""
        if self.port:
            return self
        for _ in range(100):
            first = random.randrange(PORTS.start, PORTS.stop - self.nodes - 1)
            if all(_is_free(port) for port in range(first, first + self.nodes + 1)):
                return dataclasses.replace(self, port=first)
        raise TestbedError(
            f"no {self.nodes + 1} free ports in a row between {PORTS.start} and {PORTS.stop}: choose with --port"
        )


def default_folder() -> Path:
    """Where the cluster lives when --dir does not say."""
    return Path(os.environ.get("SLURM_TESTBED_DIR") or Path(tempfile.gettempdir()) / "slurm-testbed").absolute()


def default_prefix() -> Path:
    """Where the Slurm versions are unpacked, for all clusters of this user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SLURM_TESTBED_PREFIX") or cache / "slurm-testbed").absolute()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
