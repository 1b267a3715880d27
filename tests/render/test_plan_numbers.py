"""The numbers as bars, text, JSON and a page."""

import json
import re
from xml.etree import ElementTree

import pytest

from launcher.config.groups import options
from launcher.render.layout import WIDTH
from launcher.render.plan_numbers import (
    BAR,
    MARKS,
    Piece,
    bar,
    cost_line,
    joined,
    memory_pieces,
    numbers_json,
    numbers_lines,
)
from launcher.render.plan_page import plan_page
from launcher.render.plan_text import plan_json


def test_the_article_is_over_in_words_and_in_the_bar(plan_of) -> None:
    lines = numbers_lines(plan_of("+exp=dsv3_128gpu"))
    text = "\n".join(lines)
    assert "OVER: 182.6 GiB a GPU (+-8%) of 162.2 GiB that XLA may use (0.88 x 184.3 GiB)" in text
    drawn = next(line for line in lines if "|" in line)
    assert 0 < len(drawn[drawn.index("|") + 1 :]) < BAR
    assert "250.4 GFLOP a token, 6,155 TFLOP a GPU and step" in text
    assert "4,900" in text


def test_offloaded_tensors_are_told_by_process_and_node(plan_of) -> None:
    text = " ".join("\n".join(numbers_lines(plan_of("+exp=dsv3_128gpu_fits"))).split())
    assert "FITS: 136" in text
    assert "context 46.5 GiB a process, 185.9 GiB of a node's 894.1 GiB" in text


@pytest.mark.parametrize("name", options("exp"))
def test_bars_and_lines_fit_and_every_mark_is_explained(plan_of, name: str) -> None:
    plan = plan_of(f"+exp={name}")
    lines = numbers_lines(plan)
    assert lines
    assert all(len(line) <= WIDTH for line in lines)
    for drawn in (line.strip() for line in lines if re.fullmatch(r"[ |#=+*o%@x~.-]{60,}", line.strip())):
        for mark in set(drawn) - {" ", "|"}:
            assert any(f"{mark} " in line for line in lines if line.strip() != drawn), mark


def test_a_bars_pieces_keep_their_proportions() -> None:
    drawn = bar([Piece("a", 30), Piece("b", 10)], 80, 60)
    assert drawn.count(MARKS[0]) == round(BAR * 30 / 80)
    assert drawn.index("|") == round(BAR * 60 / 80)
    over = bar([Piece("a", 90)], 90, 60)
    assert over.index("|") == round(BAR * 60 / 90)
    assert over.count(MARKS[0]) == BAR


def test_small_pieces_are_joined_and_nothing_is_lost() -> None:
    pieces = [Piece("large", 1000), *(Piece(f"p{n}", 4) for n in range(10))]
    found = joined(pieces)
    assert [p.name for p in found] == ["large", "other"]
    assert sum(p.size for p in found) == 1040


def test_json_has_exact_bytes_and_rounded_times(plan_of) -> None:
    plan = plan_of("+exp=dsv3_128gpu_fits")
    told = json.loads(json.dumps(numbers_json(plan)))
    assert told["memory"]["host_bytes"] == plan.numbers.memory.host
    assert told["memory"]["verdict"] == "FITS"
    assert (
        sum(told["memory"][part][name] for part in ("state", "kept", "working") for name in told["memory"][part])
        == told["memory"]["total_bytes"]
    )
    assert told["memory"]["receive_rows"] == 393216
    for name in ("floor_s", "expected_s", "low_s", "high_s", "mfu"):
        assert told["time"][name] == float(f"{told['time'][name]:.4g}")
    assert told["kind"]["cluster"] == "slurm gb200_nvl72 generic"
    assert plan_json(plan)["numbers"] == numbers_json(plan)


def test_a_cpu_has_memory_and_no_time(plan_of) -> None:
    told = numbers_json(plan_of("+exp=moe_tiny_cpu"))
    assert told is not None
    assert told["time"] is None


def test_without_numbers_there_is_a_reason(plan_of) -> None:
    plan = plan_of("+exp=dsv3_128gpu", "+maxtext.use_indexer=true")
    assert numbers_json(plan) is None
    assert numbers_lines(plan) == ["Numbers: none, use_indexer is not modelled"]


def test_a_price_is_hours_times_gpus(plan_of) -> None:
    line = cost_line(plan_of("+exp=dsv3_128gpu"), 2.5)
    assert f"{128 * 2.5 * 24:,.0f} USD a day" in line
    assert cost_line(plan_of("+exp=moe_tiny_cpu"), 2.5) == ""


@pytest.mark.parametrize("name", ["dsv3_128gpu", "moe_tiny_cpu"])
def test_the_page_stands_alone(plan_of, name: str) -> None:
    page = plan_page(plan_of(f"+exp={name}"))
    assert "http" not in page
    assert "<script" not in page
    drawn = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(drawn) == (2 if name == "dsv3_128gpu" else 1)
    for svg in drawn:
        widths = [float(r.get("width", "0")) for r in ElementTree.fromstring(svg).iter("rect") if r.get("y") == "16"]
        assert sum(widths) <= 960.5


def test_the_pages_bar_is_the_memory(plan_of) -> None:
    plan = plan_of("+exp=dsv3_128gpu")
    assert sum(p.size for p in memory_pieces(plan.numbers.memory)) == pytest.approx(plan.numbers.memory.total)


def test_a_hostile_description_stays_text(plan_of) -> None:
    page = plan_page(plan_of("+exp=dsv3_128gpu", "description='<script>x</script>'"))
    assert "<script>" not in page
