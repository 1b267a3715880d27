"""How an attempt on several nodes ended: whose word counts, when more than one node says something."""

import pytest

from launcher.node.codes import Code
from launcher.node.ending import Facts, by_words, judge
from launcher.node.pod import end_of

FOR_ALL = [Code.FINISHED, Code.DIVERGED, Code.OVERFLOW, Code.CONFIG_REFUSED]
"""What node 0 alone can say, since it has acted upon it, or since it holds for every node."""


def facts(code, failure=1):
    """Node 1's rank failed first and said so; node 0 has judged the whole attempt."""
    started = {node: {"host": f"n{node}"} for node in (0, 1)}
    results = {0: {"code": int(code), "reason": "node 0's word"}, 1: {"code": 1, "reason": "rank 1 died"}}
    return Facts(
        results, started, {"node": 1, "host": "n1", "code": failure, "reason": "rank 1 died"}, (), ("n0", "n1")
    )


@pytest.mark.parametrize("code", FOR_ALL)
def test_what_node_0_has_acted_upon_counts_more_than_who_died_first(code):
    """MaxText's ranks all end over the same NaN or overflow, and any of them may be the first."""
    for end in (judge(facts(code)), by_words(facts(code)), end_of(facts(code), None)):
        assert (end.code, end.reason, end.suspects) == (code, "node 0's word", ())


@pytest.mark.parametrize("code", [1, 139, Code.PREEMPTED, Code.STALLED])
def test_else_the_first_failure_counts(code):
    end = judge(facts(code))
    assert (end.code, end.reason, end.host) == (1, "node 1 (n1): rank 1 died", "n1")
