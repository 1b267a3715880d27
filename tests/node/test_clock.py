"""Stamps without year and zone, read back into Unix seconds."""

import calendar
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.clock import Clock

START = 1795973750.0  # 2026-11-29 17:35:50 UTC


def stamp(seconds):
    return time.strftime("I%m%d %H:%M:%S", time.gmtime(seconds)) + f".{round(seconds % 1 * 1e6):06d} 77 a.py:1] x"


@given(
    zone=st.integers(-48, 56).map(lambda quarters: 900 * quarters),
    delay=st.floats(0, 700),
    later=st.floats(0, 86400 * 100),
    start=st.integers(1_600_000_000, 2_000_000_000),
)
def test_any_zone_and_year_is_found_from_the_start(zone, delay, later, start):
    clock = Clock(start)
    assert clock.at(stamp(start + delay + zone)) == pytest.approx(start + delay, abs=1e-5)
    assert clock.at(stamp(start + delay + later + zone)) == pytest.approx(start + delay + later, abs=1e-5)
    assert clock.zone == zone


def test_a_log_goes_on_over_new_year():
    eve = calendar.timegm((2026, 12, 31, 23, 59, 0))
    clock = Clock(eve)
    assert clock.at("I1231 23:59:30.000000 1 a.py:1] x") == eve + 30
    assert clock.at("I0101 00:00:30.500000 1 a.py:1] x") == eve + 90.5


def test_the_29th_of_february():
    day = calendar.timegm((2028, 2, 29, 12, 0, 0))
    assert Clock(day).at("I0229 12:00:01.000000 1 a.py:1] x") == day + 1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no stamp",
        "I1399 17:35:53.415048 x",
        "I1129 27:35:53.415048 x",
        "I1129 17:35:5x.415048 x",
        "X1129 17:35:53.4 x",
    ],
)
def test_what_is_no_stamp_has_no_time(line):
    assert Clock(START, 0).at(line) is None
