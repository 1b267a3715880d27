"""Whatever a user types, the plan answers with issues and never with an exception."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config import maxtext_schema
from launcher.config.compose import Composer
from launcher.config.overrides import schema_keys
from launcher.config.schema import OPEN_DICTS
from launcher.issue import Issue
from launcher.plan.plan import make

COMPOSER = Composer()
KEYS = sorted(
    k
    for k, kind in schema_keys().items()
    if k.count(".") and not hasattr(kind, "__dataclass_fields__") and k not in OPEN_DICTS
)
MAXTEXT = sorted(maxtext_schema.load("0.2.5").keys)

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
numbers = st.one_of(st.integers(-(10**30), 10**30), st.integers(-3, 300), st.floats(), st.just(float("inf")))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(texts, scalars, max_size=2))
experiments = st.sampled_from(("dsv3_128gpu", "moe_tiny_cpu"))
extras = st.one_of(st.sampled_from(MAXTEXT), texts)

BASES = {name: COMPOSER.compose([f"+exp={name}"]).experiment for name in ("dsv3_128gpu", "moe_tiny_cpu")}


@given(experiment=experiments, asked=st.dictionaries(st.sampled_from(KEYS), scalars, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_value_of_a_key(experiment: str, asked: dict[str, object]) -> None:
    words = [f"{key}={value}" for key, value in asked.items()]
    quoted = [w for w in words if not set(w) & set("'\"\\$,:{}[]() =\n\t") - {"="} and w.isascii() and w.isprintable()]
    composed = COMPOSER.compose([f"+exp={experiment}", *quoted])
    if composed.experiment is not None:
        issues = make(composed.experiment).issues
        assert list(issues) == sorted(issues, key=Issue.rank)


dictionaries = st.tuples(
    *(st.dictionaries(names, values, max_size=3) for names in (extras, extras, texts, texts, texts))
)


@given(experiment=experiments, written=dictionaries, names=st.lists(texts, max_size=2))
@settings(max_examples=150, deadline=None)
def test_anything_in_the_open_dictionaries(
    experiment: str, written: tuple[dict[str, object], ...], names: list[str]
) -> None:
    asked = copy.deepcopy(BASES[experiment])
    assert asked is not None
    asked.maxtext, asked.model.overrides, asked.env.vars, asked.fabric.vars, asked.xla.flags = written
    asked.env.secrets = names
    for issue in make(asked).issues:
        assert issue.code
        assert issue.field
        assert issue.message
