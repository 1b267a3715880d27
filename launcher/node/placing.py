"""Which nodes of the allocation an attempt runs on: asked once a start, chosen anew for each attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from . import domains, step
from .codes import Code
from .domains import Node
from .ending import End
from .launch import Launch
from .layout import AttemptFolder, BundleFolder

ASK_SECONDS = 300.0  # for the question to all nodes; 256 of them answer in seconds


class Nodes:
    """The allocation's nodes in SLURM's order, with their domains once `ask` has been called."""

    def __init__(self, hosts: Sequence[str], launch: Launch) -> None:
        self._nodes = [Node(host) for host in hosts]
        self._launch = launch
        self._is_asked = launch.nodes_per_domain <= 1

    def ask(self, bundle: BundleFolder, attempt: AttemptFolder, tick: Callable[[], None]) -> End | None:
        """Asks every node for its domain, by a step outside the container. Gives an End when a node does not answer.

        Asked once: an answer holds as long as the allocation does.
        """
        if self._is_asked:
            return None
        hosts = [node.host for node in self._nodes]
        log, told = attempt.path / "domains.log", attempt.path / "domains.jsonl"
        told.unlink(missing_ok=True)
        running = step.Step(step.domain_words(self._launch, bundle, hosts), log, told)
        rc = running.wait(tick, ASK_SECONDS)
        answers = {node.host: node for node in domains.read_nodes("\n".join(step.lines_of(told)))}
        silent = [host for host in hosts if host not in answers]
        if silent:
            said = step.reason_in(step.lines_of(log)) or f"srun ended with exit code {rc}"
            few = tuple(silent) if 2 * len(silent) < len(hosts) else ()
            reason = f"{domains.folded(silent)} did not answer which NVLink domain it is in: {said}"
            return End(int(Code.BAD_NODE), reason, few[0] if few else "", few)
        self._nodes = [answers[host] for host in hosts]
        self._is_asked = True
        return None

    @property
    def are_strangers(self) -> bool:
        """Whether domains matter and not one is known."""
        return self._launch.nodes_per_domain > 1 and not any(node.block or node.fabric for node in self._nodes)

    def suffice(self, excluded: Iterable[str]) -> bool:
        """Whether an attempt fits the nodes without `excluded`."""
        chosen = self._choose(excluded)
        return len(chosen) == self._launch.nodes and not domains.misplaced(chosen, self._launch.nodes_per_domain)

    def choose(self, excluded: Iterable[str]) -> tuple[list[str], End | None, bool]:
        """The nodes of the next attempt; or why there are none, and whether that is these nodes' place for good."""
        chosen, size = self._choose(excluded), self._launch.nodes_per_domain
        hosts = [node.host for node in chosen]
        if len(chosen) < self._launch.nodes:
            reason = f"{len(chosen)} of this job's {len(self._nodes)} nodes can be used, wanted {self._launch.nodes}"
            return hosts, End(int(Code.BAD_NODE), reason), False
        why = domains.misplaced(chosen, size, self._launch.expert_nodes)
        if why:
            return hosts, End(int(Code.BAD_NODE), why), True
        deaf = domains.without_imex(chosen, size) if self._launch.platform == "gpu" else []
        if deaf:
            reason = (
                f"no IMEX channel ({domains.IMEX_CHANNELS}) on {domains.folded(deaf)}: NVLink ends at the node there"
            )
            few = tuple(deaf) if 2 * len(deaf) < len(chosen) else ()
            return hosts, End(int(Code.BAD_NODE), reason, few[0] if few else "", few), not few
        return hosts, None, False

    def _choose(self, excluded: Iterable[str]) -> list[Node]:
        bad = set(excluded)
        healthy = [node for node in self._nodes if node.host not in bad]
        return domains.choose(healthy, self._launch.nodes, self._launch.nodes_per_domain)
