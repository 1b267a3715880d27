import math
import string

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.render.yaml_text import block, scalar

LOADERS = [yaml.SafeLoader] + ([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
YAML_SYNTAX = st.text(alphabet=string.ascii_lowercase[:3] + "\\${}: #'\"%@`!&*[],-?|>~=\n\t\r\x00\x85\xa0\u2028\ufeff")

NASTY = [
    "", " ", "yes", "No", "on", "OFF", "y", "null", "Null", "~", "none", "true", "1", "-1", "+1", "1.0", "1e5", "1e-08",
    ".5", ".inf", "-.INF", ".nan", "0x1f", "0o17", "0b11", "017", "1_000", "12:30:45", "2026-01-31", "=", "<<", "---",
    "...", "- a", "? a", "a: b", "a:", ":a", "a #b", "#a", "&a", "*a", "!a", "!!str a", "%a", "@a", "`a", "|", ">", "[",
    "{", "a, b", "'", '"', "'FUSION,CUBLAS'", '"double"', "\\", "a\\", "C:\\new", "$HOME", "tab\t", "two\nlines", "\r",
    " lead", "trail ", "äöü", "日本", "😀", "\x7f", "\x85", "\u2028", "\ufeff", "M:", "gpu", "/path/to/x", "a-b_c.d/e+f@g",
]  # fmt: skip


def readings(text: str) -> list[object]:
    """One `key: value` line as PyYAML's readers and OmegaConf's (MaxText's) see its value."""
    line = f"key: {text}\n"
    plain = [yaml.load(line, Loader=loader)["key"] for loader in LOADERS]
    return [*plain, OmegaConf.to_container(OmegaConf.create(line), resolve=True)["key"]]


@pytest.mark.parametrize("value", NASTY)
def test_every_reader_gives_nasty_text_back(value: str) -> None:
    assert readings(scalar(value)) == [value] * (len(LOADERS) + 1)
    assert readings(scalar([value, {"inner": value}])) == [[value, {"inner": value}]] * (len(LOADERS) + 1)


@given(st.one_of(UNICODE, YAML_SYNTAX).filter(lambda text: "${" not in text))
def test_every_reader_gives_any_text_back(value: str) -> None:
    assert readings(scalar(value)) == [value] * (len(LOADERS) + 1)


@given(YAML_SYNTAX, YAML_SYNTAX)
@example("", "HOME}")
@example("\\", "a}\\")
@example("\\\\", "")
def test_omegaconf_does_not_interpolate_what_was_written_as_text(before: str, after: str) -> None:
    value = before + "${" + after
    config = OmegaConf.create(f"key: {scalar(value)}\nlist: {scalar([value])}\n")
    assert config.key == value
    assert config.list[0] == value


@given(st.floats(allow_nan=False))
@example(1e-08)
@example(2.45e15)
@example(9e11)
@example(1e6)
@example(0.88)
@example(math.inf)
def test_floats_stay_floats(value: float) -> None:
    for seen in readings(scalar(value)):
        assert seen == value
        assert type(seen) is float


@pytest.mark.parametrize("value", [None, True, False, 0, -1, 6442450944, [], {}, [1, "1", None], {"a": {"b": [1.5]}}])
def test_other_values_keep_their_type(value: object) -> None:
    for seen in readings(scalar(value)):
        assert seen == value
        assert type(seen) is type(value)


def test_text_stays_plain_where_that_is_safe() -> None:
    assert [scalar(v) for v in ("bfloat16", "deepseek3-671b", "/data/c4", "0.2.5", "off", 2.45e15)] == [
        "bfloat16", "deepseek3-671b", "/data/c4", '"0.2.5"', '"off"', "2.45e+15",
    ]  # fmt: skip


def test_a_comment_stands_above_its_key() -> None:
    assert block({"a": 1, "b": "x y"}, 2, {"b": "why\nand how"}) == ["  a: 1", "  # why", "  # and how", '  b: "x y"']


def test_what_no_configuration_holds_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        scalar(b"x")
    with pytest.raises(ValueError, match="not valid Unicode"):
        scalar("caf\udce9")
