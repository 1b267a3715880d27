"""The Kubernetes target's harness: what its tests do to a run, on a real API server with the test bed's controllers behind it."""

import json
import os
import time
from pathlib import Path

from bench import STEPS, Bench

from launcher.runs import store
from launcher.runs.attempts import handle_of, newest

HERE = Path(__file__).resolve().parent
TYPED = ("+exp=moe_tiny_cpu", f"trainer.steps={STEPS}", "trainer.module=conformance_trainer")


class KubeHarness:
    # The suite is about one attempt: the JobSet shall not start the next one by itself.
    words = (
        "target=kubernetes",
        "container=nvidia_maxtext",
        "target.kubernetes.claim=runs",
        "target.kubernetes.queue=null",
        "monitor.max_failures=0",
        "monitor.max_preemptions=0",
        "monitor.max_bad_nodes=0",
    )
    seconds_between_looks = 0.1

    def __init__(self, cluster):
        self.cluster = cluster

    def provide(self, experiment, names):
        """The shell's secrets, as far as it has them, in the cluster's."""
        for name in names:
            secret = name.lower().replace("_", "-")
            experiment.target.kubernetes.secrets[name] = f"{secret}/value"
            if name in os.environ:
                where = (
                    "-n",
                    self.cluster.namespace,
                    "create",
                    "secret",
                    "generic",
                    secret,
                    "--from-file=value=/dev/stdin",
                )
                self.cluster.server.kubectl(*where, input=os.environ[name])

    def kill_worker(self, run):
        self.cluster.kill(self.pod(run))

    def preempt(self, run):
        self.cluster.evict(self.pod(run))

    def pod(self, run, index=0):
        """The name of a pod of the newest attempt."""
        pods = self.cluster.pods(jobset_of(run))
        newest_restart = max(int(pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"]) for pod in pods)
        return self.cluster.pods(jobset_of(run), newest_restart)[index]["metadata"]["name"]

    def output(self, run):
        """Where the trainers write: on the volume, in the JobSet's folder."""
        return self.cluster.volume / jobset_of(run) / "output"

    def left_over(self, run):
        """Workers and trainers, whose command lines name the JobSet's folder on the volume."""
        deadline = time.monotonic() + 10
        folder = str(self.cluster.volume / jobset_of(run)).encode()
        while True:
            found = [int(entry.name) for entry in Path("/proc").iterdir() if _works_in(entry, folder)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def _works_in(entry, folder):
    try:
        return entry.name.isdigit() and folder in (entry / "cmdline").read_bytes()
    except OSError:
        return False


def jobset_of(run):
    """The JobSet of the newest attempt."""
    return handle_of(run, newest(run))["jobset"]


def with_words(bench, *words):
    """The bench with more overrides."""
    harness = KubeHarness(bench.harness.cluster)
    harness.words = (*harness.words, *words)
    return Bench(bench.root, harness)


def typed(bench, orders="", **words):
    path = os.pathsep.join([str(HERE), str(HERE.parent / "node")])
    more = [f"+env.vars.PYTHONPATH={path}", f"+env.vars.STANDIN='{orders}'"]
    return [*TYPED, *bench.harness.words, *more, *(f"{key}={value}" for key, value in words.items())]


def only_run(bench):
    (run,) = store.all_runs(bench.root)
    return run


def objects(cluster, kind):
    told = cluster.server.kubectl("-n", cluster.namespace, "get", kind, "-o", "json").stdout
    return json.loads(told)["items"]


def rows(text):
    """The lines of `status` by their first word."""
    return dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
