"""The text of a cluster's configuration files: pure, settings in, text out."""

from __future__ import annotations

from pathlib import Path

from slurm.testbed.install import Tree
from slurm.testbed.settings import Settings

# Every process of a cluster sees an /etc/hosts that ends in this line, and no other process does: the mark by which the cluster
# finds its own (cluster.py).
MARK = "# slurm-testbed {folder} {role}"
MEMORY_MB = 4000


def slurm_conf(settings: Settings, tree: Tree) -> str:
    """Give slurm.conf. Loopback alone, no cgroups, no systemd, sizes pretended."""
    d = settings.folder
    lines = [
        "ClusterName=testbed",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={settings.port}",
        # One address for all: with an address a node, srun listens on one and is called back on the other.
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={d}/run/munge.sock,cred_expire={settings.requeue_delay}",
        f"PluginDir={tree.plugins}",
        f"PlugStackConfig={d}/plugstack.conf",
        f"StateSaveLocation={d}/state",
        f"SlurmdSpoolDir={d}/spool/%n",
        f"SlurmctldPidFile={d}/run/slurmctld.pid",
        f"SlurmdPidFile={d}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={d}/log/slurmctld.log",
        f"SlurmdLogFile={d}/log/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={d}/log/jobcomp.txt",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0",
        "ReturnToService=2",
        # Believe the sizes below, not the machine.
        "SlurmdParameters=config_overrides",
        "GresTypes=gpu",
        "KillWait=3",
        # Long enough that scontrol, and so the sacct of this folder, answers for every job of a test session.
        "MinJobAge=86400",
        *settings.lines,
    ]
    return "\n".join(lines + _nodes(settings)) + "\n"


def _nodes(settings: Settings) -> list[str]:
    gres = f" Gres=gpu:gb200:{settings.gpus}" if settings.gpus else ""
    size = f"CPUs={settings.cpus} RealMemory={MEMORY_MB}{gres}"
    lines = ["TopologyPlugin=topology/block"] if settings.blocks else []
    for i, name in enumerate(settings.names):
        address = f"NodeHostname={name} NodeAddr=127.0.0.1 Port={settings.port + 1 + i}"
        lines.append(f"NodeName={name} {address} {size} State=UNKNOWN")
    if settings.cloud:
        cloud = _span("c", 0, settings.cloud)
        lines += ["SuspendProgram=/bin/true", "ResumeProgram=/bin/true", "SuspendTime=-1"]
        lines.append(f"NodeName={cloud} {size} State=CLOUD")
        lines.append(f"PartitionName=cloud Nodes={cloud} MaxTime=INFINITE State=UP")
    lines.append(f"PartitionName=main Nodes={_span('n', 0, settings.nodes)} Default=YES MaxTime=INFINITE State=UP")
    return lines


def gres_conf(settings: Settings) -> str:
    """Give gres.conf. Slurm wants device files: a mere count leaves the nodes invalid."""
    if not settings.gpus:
        return ""
    devices = f"Name=gpu Type=gb200 File={settings.folder}/dev/nvidia{_bracket(0, settings.gpus)}"
    names = [_span("n", 0, settings.nodes)] + ([_span("c", 0, settings.cloud)] if settings.cloud else [])
    return "".join(f"NodeName={name} {devices}\n" for name in names)


def topology_conf(settings: Settings) -> str:
    """Give topology.conf: one block a rack, the racks of the running nodes first."""
    size = settings.nodes_per_rack
    racks = [_span("n", i, i + size) for i in range(0, settings.nodes, size)]
    racks += [_span("c", i, i + size) for i in range(0, settings.cloud, size)]
    return "".join(f"BlockName=rack{k} Nodes={rack}\n" for k, rack in enumerate(racks)) + f"BlockSizes={size}\n"


def plugstack_conf(settings: Settings, plugin: Path, image: list[Path]) -> str:
    """Give plugstack.conf for the stand-in pyxis; `image` are the folders that every image holds."""
    d = settings.folder
    return f"required {plugin} images={d}/images hide={':'.join(settings.hide)} image={':'.join(map(str, image))}\n"


def hosts(settings: Settings, machine: str, role: str) -> str:
    """Give the /etc/hosts of one role (controller, munge or a node): the machine's own, the nodes on loopback, and the mark."""
    nodes = "".join(f"127.0.0.1 {name}\n" for name in settings.names)
    return f"{machine.rstrip()}\n{nodes}{MARK.format(folder=settings.folder, role=role)}\n"


def _bracket(first: int, end: int) -> str:
    return f"[{first}-{end - 1}]"


def _span(prefix: str, first: int, end: int) -> str:
    return f"{prefix}{_bracket(first, end)}"
