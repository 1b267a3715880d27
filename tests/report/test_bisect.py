"""`ladder bisect`: the search finds the least set that makes the difference, whatever the settings; and on runs of this machine."""

import itertools
import json
import random

import pytest
from test_compare import made
from test_ladder import TINY

from launcher.report.bisect import (
    Found,
    Judged,
    Setting,
    Side,
    Tried,
    bisect_text,
    by_end,
    difference,
    judge,
    mixed,
    search,
    settings,
)
from launcher.report.measured import report
from launcher.report.probes import Bisection
from launcher.report.text import as_json


def solved(count, side):
    """The search with runs that are made as soon as they are wanted: what is found, and the number of runs."""
    known = {}
    for _ in range(1000):
        found = search(count, known.get)
        if not found.wanted:
            return found.suspected, len(known)
        known.update({probe: side(probe) for probe in found.wanted})
    raise AssertionError("no end")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 50])
def test_one_setting_is_found_wherever_it_stands(count):
    for place in range(count):
        found, runs = solved(count, lambda probe, place=place: Side.B if place in probe else Side.A)
        assert found == (place,)
        assert runs <= 2 * count.bit_length()


@pytest.mark.parametrize("size", [2, 3])
def test_those_that_only_act_together_are_found(size):
    for places in itertools.combinations(range(7), size):
        found, _ = solved(7, lambda probe, places=places: Side.B if set(places) <= probe else Side.A)
        assert found == places


def test_no_part_of_what_is_found_can_be_left_out():
    draw = random.Random(5)
    for _ in range(200):
        count = draw.randint(2, 8)
        wholes = [frozenset(draw.sample(range(count), draw.randint(1, count))) for _ in range(draw.randint(1, 3))]
        unclear = {frozenset(draw.sample(range(count), draw.randint(1, count - 1))) for _ in range(3)}

        def side(probe, wholes=wholes, unclear=unclear):
            if probe in unclear:
                return Side.UNCLEAR
            return Side.B if any(whole <= probe for whole in wholes) else Side.A

        found, _ = solved(count, side)
        assert len(found) == count or side(frozenset(found)) is Side.B
        for place in found:
            if len(found) > 1:
                assert side(frozenset(found) - {place}) is not Side.B


def test_both_halves_are_wanted_at_once_and_a_known_first_half_is_enough():
    halves = (frozenset({0, 1}), frozenset({2, 3}))
    assert search(4, {}.get) == Found((0, 1, 2, 3), halves)
    assert search(4, {halves[0]: Side.B}.get) == Found((0, 1), (frozenset({0}), frozenset({1})))
    assert search(4, {halves[1]: Side.B}.get) == Found((0, 1, 2, 3), halves[:1])


def test_mixing_gives_both_ends():
    a = {"name": "a", "moe": {"te": True, "factor": 2.0}, "env": {"vars": {}}, "mesh": {"ici": {"fsdp": 2}}}
    b = {"name": "b", "moe": {"te": True}, "env": {"vars": {"X": "1"}}, "mesh": {"ici": {"fsdp": 4}}, "nodes": 2}
    found = settings(a, b)
    assert [setting.key for setting in found] == ["env.vars.X", "mesh.ici.fsdp", "moe.factor", "nodes"]
    assert {**mixed(a, found), "name": "b"} == b
    assert mixed(a, []) == a
    assert a["env"] == {"vars": {}}


def told(root, name, seconds, **more):
    return as_json(report(made(root, name, seconds, **more)))


def test_a_probe_in_the_middle_or_of_few_steps_is_unclear(tmp_path):
    a, b = told(tmp_path, "a-00000001", 2.0), told(tmp_path, "b-00000001", 1.0, seed=2)
    whole = difference(a, b)
    for seconds, side, share in (
        (2.02, Side.A, 0),
        (1.01, Side.B, 1),
        (1.7, Side.A, 0.23),
        (2**0.5, Side.UNCLEAR, 0.5),
    ):
        found = judge(told(tmp_path, f"p{seconds}-00000001".replace(".", ""), seconds, seed=3), a, whole)
        assert found.side is side, seconds
        assert found.share == pytest.approx(share, abs=0.03)
    slower = difference(b, a)
    assert judge(a, b, slower).side is Side.B
    assert judge(b, b, slower).side is Side.A
    few = {**b, "speed": {**b["speed"], "slowest_of_interval": None}}
    assert judge(few, a, whole).side is Side.UNCLEAR
    assert judge({**b, "speed": None}, a, whole).why == "it measured nothing"
    assert difference(a, told(tmp_path, "c-00000001", 2.0, seed=4)) is None
    assert by_end(a, {**b, "state": "failed"})
    assert not by_end(a, {**b, "state": "running"})
    assert not by_end(a, {**b, "state": "cancelled"})


def test_what_could_not_be_judged_is_said():
    differing = [Setting((name,), 1, 2) for name in "ab"]
    tried = [Tried(frozenset({0}), "", Judged(Side.UNCLEAR, "it cannot run: no"))]
    text = bisect_text(Found((0, 1)), differing, {}, tried)
    assert "these 2 make the difference together" in text
    assert "1 probe could not be judged" in text


def ends(command, tmp_path, order, count=3):
    """Two runs that differ in the variables S_1 .. S_count: all a, all b."""
    for value in "ab":
        words = [f"env.vars.S_{place}={value}" for place in range(1, count + 1)]
        command("submit", *TINY, f"name={value}", order, *words)
    return [next(path.name for path in tmp_path.glob(f"{value}-*")) for value in "ab"]


def test_the_setting_is_found_on_this_machine_and_typed_again_nothing_runs(command, tmp_path):
    a, b = ends(command, tmp_path, "env.vars.TOGETHER=S_3", 4)
    code, out, _ = command("ladder", "bisect", a, b)
    assert code == 0
    assert "2 probe(s) wanted next" in out
    code, out, err = command("ladder", "bisect", a, b, "--submit")
    assert code == 0, err
    assert "this setting makes the difference:\n  env.vars.S_3: a -> b" in out
    runs = sorted(path.name for path in tmp_path.iterdir())
    code, out, _ = command("ladder", "bisect", a, b, "--json")
    found = json.loads(out)
    assert (found["done"], found["suspected"]) == (True, ["env.vars.S_3"])
    assert sorted(path.name for path in tmp_path.iterdir()) == runs


@pytest.mark.slow
def test_two_that_only_act_together_on_this_machine(command, tmp_path):
    a, b = ends(command, tmp_path, "env.vars.TOGETHER='S_1,S_3'")
    code, out, err = command("ladder", "bisect", a, b, "--submit")
    assert code == 0, err
    assert "these 2 make the difference together, and no tried part of them does alone:" in out
    assert out.rstrip().endswith("  env.vars.S_1: a -> b\n  env.vars.S_3: a -> b")


def test_what_kills_a_run_is_found(command, tmp_path):
    a, b = ends(command, tmp_path, "env.vars.DEADLY=S_3")
    code, out, err = command("ladder", "bisect", a, b, "--submit")
    assert code == 0, err
    assert f"b: {b}, failed, where a is finished" in out
    assert "this setting makes the difference:\n  env.vars.S_3: a -> b" in out
    refused = Bisection(tmp_path, a, b)
    refused.differing.append(Setting(("mesh", "ici", "expert"), 2, 3))
    last = frozenset({len(refused.differing) - 1})
    assert "it cannot run: " in refused.point(last)  # and costs no run
    assert refused.judged(last) == ("", Judged(Side.UNCLEAR, refused.point(last)))


def test_without_a_difference_there_is_nothing_to_find(command, tmp_path):
    a, b = made(tmp_path, "a-00000001", 2.0).name, made(tmp_path, "b-00000001", 2.001, seed=5).name
    code, _, err = command("ladder", "bisect", a, b)
    assert code == 1
    assert "no difference beyond the noise" in err
    code, _, err = command("ladder", "bisect", a, "nothing")
    assert code == 1
    assert "there is no run nothing" in err


def test_a_small_difference_is_doubted(command, tmp_path):
    a, b, c = (made(tmp_path, f"{n}-00000001", s, noise=0.001).name for n, s in (("a", 2.0), ("b", 2.02), ("c", 3.0)))
    assert "repeat one with name=NAME" in Bisection(tmp_path, a, b).verdict
    assert Bisection(tmp_path, a, c).verdict.startswith("0.667 times as fast (")
    assert "repeat" not in Bisection(tmp_path, a, c).verdict
