"""A cluster's life: start, stop, and what a test does to it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from slurm.testbed import configuration, processes
from slurm.testbed.install import Tree, Unavailable, compile_pyxis, install
from slurm.testbed.processes import CONTROLLER, MUNGE
from slurm.testbed.settings import Settings, TestbedError, default_prefix

COMMANDS = Path(__file__).with_name("commands")  # stand-ins that precede Slurm's own on PATH
NVIDIA_MAJOR = 195  # the kernel's number for NVIDIA's character devices
SERVING = {"idle", "mixed", "allocated", "completing"}  # a node in one of these answers
# A job in one of these stays there.
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"}


class Cluster:
    """The cluster of `settings.folder`. Nothing is kept in memory: another process may stop what this one has started."""

    def __init__(self, settings: Settings, prefix: Path | None = None) -> None:
        self.settings = settings
        self.folder = settings.folder
        self.prefix = prefix or default_prefix()
        self.tree = Tree(self.prefix / settings.version)

    # ---- life ----

    def start(self, timeout_s: float = 120) -> float:
        """Bring the cluster up, all nodes idle and no job known; a cluster of these settings that is up stays. Gives the seconds."""
        begin = time.monotonic()
        if self._runs_as_wanted():
            return 0.0
        install(self.settings.version, self.prefix)
        self.stop()
        self.settings = self.settings.with_free_ports()
        self._write_files(compile_pyxis(self.tree))
        d, sbin = self.folder, self.tree.sbin
        files = [f"--key-file={d}/munge.key", f"--socket={d}/run/munge.sock", f"--pid-file={d}/run/munged.pid"]
        files += [f"--log-file={d}/log/munged.log", f"--seed-file={d}/run/munge.seed"]
        processes.wait_started(d, {MUNGE: processes.spawn(d, MUNGE, [str(sbin / "munged"), "--force", *files])})
        self.start_controller()
        processes.wait_started(d, {name: self._spawn_node(name) for name in self.settings.names})
        self.wait_ready(timeout_s)
        return time.monotonic() - begin

    def stop(self) -> None:
        """End every process of the cluster, jobs included. Its folder stays, to look at."""
        processes.kill(self.folder)

    def clean(self) -> None:
        """Stop, and remove the folder: only one that a cluster was started in."""
        self.stop()
        if self.folder.exists() and Settings.load(self.folder) is None:
            raise TestbedError(f"{self.folder} is no cluster's folder (no settings.json in it): not removed")
        shutil.rmtree(self.folder, ignore_errors=True)

    def states(self) -> dict[str, str]:
        """Give each running node's state in Slurm's long words, with its flags (`down*`, `idle*`); empty without a controller."""
        if not any(processes.find(self.folder, CONTROLLER)):
            return {}  # known at once: sinfo would try for ten seconds
        done = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False, timeout=20)
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def ready(self) -> bool:
        """Whether the controller answers and every node is up."""
        states = self.states()
        return len(states) == self.settings.nodes and set(states.values()) <= SERVING

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Wait for `ready`. Errors: TestbedError with the states and the end of the controller's log."""
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if time.monotonic() > deadline:
                log = (self.folder / "log/slurmctld.log").read_text(errors="replace").splitlines()[-15:]
                raise TestbedError(
                    f"not ready after {timeout_s:.0f} s; nodes: {dict(Counter(self.states().values()))}\n"
                    + "\n".join(log)
                )
            time.sleep(0.1)

    def reset(self) -> None:
        """Make sure that every node is idle and no job waits or runs: by a restart, if it is not so already."""
        idle = set(self.states().values()) == {"idle"}
        if not idle or self.run("squeue", "--noheader").stdout.strip():
            self.stop()
            self.start()

    # ---- commands ----

    def variables(self) -> dict[str, str]:
        """Give what a shell needs for sbatch and the like: SLURM_CONF, and the start of PATH."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{self.folder}/bin:{self.tree.bin}"}

    def environment(self) -> dict[str, str]:
        """Give this process's environment for a command: with `variables`, without what an outer Slurm or a job has left in it."""
        theirs = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "PMI_", "PMIX_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
        ours = self.variables()
        return clean | ours | {"PATH": f"{ours['PATH']}:{clean.get('PATH', os.defpath)}"}

    def run(
        self,
        *words: str,
        check: bool = True,
        timeout: float = 120,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster; `env` is added to `environment`. Errors: TestbedError with what it said."""
        settings = self.environment() | (env or {})
        done = subprocess.run(
            words, env=settings, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        if check and done.returncode != 0:
            raise TestbedError(f"{' '.join(words)}: exit code {done.returncode}: {(done.stderr + done.stdout).strip()}")
        return done

    def submit(self, *words: str, cwd: Path, env: dict[str, str] | None = None) -> str:
        """Give sbatch these words; the job's id comes back."""
        return self.run("sbatch", "--parsable", *words, cwd=cwd, env=env).stdout.strip()

    def job(self, job: str, field: str) -> str:
        """Give one field of `scontrol show job`, JobState or Restarts say; known for a day after the job's end."""
        found = re.search(rf"(?:^|\s){field}=(\S*)", self.run("scontrol", "show", "job", "--oneliner", job).stdout)
        if found is None:
            raise TestbedError(f"scontrol show job {job} has no {field}")
        return found[1]

    def wait_job(self, job: str, *states: str, timeout_s: float = 60) -> str:
        """Wait until the job is in one of the states, and give it. Errors: TestbedError with another state that it stays in."""
        deadline = time.monotonic() + timeout_s
        while (state := self.job(job, "JobState")) not in states:
            if time.monotonic() > deadline or state in ENDED:
                raise TestbedError(f"job {job} is {state} ({self.job(job, 'Reason')}), not {' or '.join(states)}")
            time.sleep(0.1)
        return state

    # ---- what a test does to it ----

    def kill_daemon(self, node: str) -> None:
        """SIGKILL a node's slurmd alone: its jobs run on, and the controller loses sight of the node (down after SlurmdTimeout)."""
        pid = processes.daemon(self.folder, self._known(node), self.folder / f"run/slurmd-{node}.pid")
        if pid is None:
            raise TestbedError(f"{node} has no living daemon")
        processes.end(pid, signal.SIGKILL)

    def crash_node(self, node: str) -> None:
        """SIGKILL everything that runs on a node, its daemon and all tasks, as if its power had gone."""
        processes.kill(self.folder, self._known(node))

    def start_node(self, node: str) -> None:
        """Start the daemon of a node again; the node returns by itself (ReturnToService=2)."""
        if processes.daemon(self.folder, self._known(node), self.folder / f"run/slurmd-{node}.pid") is None:
            processes.wait_started(self.folder, {node: self._spawn_node(node)})

    def stop_controller(self) -> None:
        """Stop slurmctld the orderly way: it saves its state. Jobs run on; commands fail."""
        pid = processes.daemon(self.folder, CONTROLLER, self.folder / "run/slurmctld.pid")
        if pid is not None:
            processes.end(pid, signal.SIGTERM)

    def start_controller(self) -> None:
        """Start slurmctld on its saved state."""
        if processes.daemon(self.folder, CONTROLLER, self.folder / "run/slurmctld.pid") is None:
            words = [str(self.tree.sbin / "slurmctld"), "-f", str(self.folder / "slurm.conf")]
            processes.wait_started(self.folder, {CONTROLLER: processes.spawn(self.folder, CONTROLLER, words)})

    def drain(self, node: str, reason: str) -> None:
        """Take no new jobs on a node, as a health check would."""
        self.run("scontrol", "update", f"nodename={self._known(node)}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Undo `drain`, or `down`."""
        self.run("scontrol", "update", f"nodename={self._known(node)}", "state=resume")

    def start_soon(self, job: str) -> None:
        """Let a requeued job start after two seconds instead of Slurm's pause (`requeue_delay`).

        Not at once: slurmd refuses a start in the second in which it was told to end the job ("credential revoked", exit code 1).
        """
        self.wait_job(job, "PENDING")
        self.run("scontrol", "update", f"jobid={job}", "starttime=now+2")

    # ---- inside ----

    def _known(self, node: str) -> str:
        if node not in self.settings.names:
            raise TestbedError(f"no node {node}: there are {self.settings.names[0]} to {self.settings.names[-1]}")
        return node

    def _runs_as_wanted(self) -> bool:
        running = Settings.load(self.folder)
        if running is None:
            return False
        wanted = self.settings if self.settings.port else Settings(**{**vars(self.settings), "port": running.port})
        if wanted != running or not self.ready():
            return False
        self.settings = running
        return True

    def _spawn_node(self, name: str) -> subprocess.Popen[bytes]:
        words = [
            str(self.tree.sbin / "slurmd"),
            "-f",
            str(self.folder / "slurm.conf"),
            "-N",
            name,
            "-d",
            str(self.tree.sbin / "slurmstepd"),
        ]
        return processes.spawn(self.folder, name, words, hostname=name)

    def _write_files(self, plugin: Path) -> None:
        s, d = self.settings, self.folder
        d.mkdir(parents=True, exist_ok=True)
        for folder in ("state", "spool", "run", "hosts"):  # of an earlier cluster; logs and images stay
            shutil.rmtree(d / folder, ignore_errors=True)
        for folder in ("state", "spool", "run", "hosts", "log", "dev", "bin", "images"):
            (d / folder).mkdir(exist_ok=True)
        key = d / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        for i in range(s.gpus):
            _device(d / f"dev/nvidia{i}", i)
        for command in COMMANDS.iterdir():
            shutil.copy(command, d / "bin" / command.name)
        machine = Path("/etc/hosts").read_text(encoding="utf-8")
        for role in (CONTROLLER, MUNGE, *s.names):
            (d / "hosts" / role).write_text(configuration.hosts(s, machine, role), encoding="utf-8")
        python = sorted({Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {Path("/usr")})
        (d / "plugstack.conf").write_text(configuration.plugstack_conf(s, plugin, python), encoding="utf-8")
        (d / "slurm.conf").write_text(configuration.slurm_conf(s, self.tree), encoding="utf-8")
        (d / "gres.conf").write_text(configuration.gres_conf(s), encoding="utf-8")
        if s.blocks:
            (d / "topology.conf").write_text(configuration.topology_conf(s), encoding="utf-8")
            (d / "cgroup.conf").write_text("CgroupPlugin=disabled\n", encoding="utf-8")
        s.save()


def _device(path: Path, minor: int) -> None:
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, minor))
    except PermissionError as why:
        raise Unavailable(
            f"this machine does not let root make device nodes ({why}): a container without CAP_MKNOD?"
        ) from why
