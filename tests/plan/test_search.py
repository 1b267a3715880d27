"""The search: what it offers passes every check and fits, it finds what a person found, and it is quick."""

import time

import pytest

from launcher.config import maxtext_schema
from launcher.config.compose import Composer
from launcher.plan import throughput
from launcher.plan.memory import Verdict
from launcher.plan.mesh import lay_out
from launcher.plan.plan import make
from launcher.plan.search import Found, search

COMPOSER = Composer()
SCHEMA = maxtext_schema.load("0.2.5")


def found(*words: str, most: int = 10) -> Found:
    composed = COMPOSER.compose(list(words))
    assert composed.experiment is not None, composed.issues
    mesh, issues = lay_out(composed.experiment)
    assert mesh is not None, issues
    return search(composed.experiment, mesh, SCHEMA, most)


@pytest.fixture(scope="module")
def article() -> Found:
    return found("+exp=dsv3_128gpu")


def test_the_fit_of_the_article_is_found(article: Found) -> None:
    assert article.ties[0].words == ("remat.context=offload",)
    assert not [c for c in (*article.ties, *article.slower) if not c.words]


def test_every_offer_is_legal_and_fits_when_it_is_typed(article: Found) -> None:
    for choice in (*article.ties[:5], *article.slower[:3]):
        composed = COMPOSER.compose(["+exp=dsv3_128gpu", *choice.words])
        assert composed.experiment is not None, composed.issues
        plan = make(composed.experiment)
        assert not plan.errors, choice.words
        assert plan.numbers is not None
        assert plan.numbers.throughput is not None
        assert plan.numbers.memory.verdict is Verdict.FITS
        assert plan.numbers.memory.total == choice.memory.total
        assert plan.numbers.throughput.expected == pytest.approx(choice.expected)
        assert plan.mesh is not None
        assert plan.mesh.gpus == 128


def test_everything_is_looked_at_or_rejected_with_a_reason(article: Found) -> None:
    assert article.rejected["memory OVER"] > 0
    assert article.rejected["expert groups cross NVLink domains"] > 0
    assert sum(article.rejected.values()) < article.looked_at


def test_ties_are_within_the_noise_and_slower_ones_are_not(article: Found) -> None:
    assert article.fastest is not None
    near = (1 - throughput.constants()["band"]["tie"]) * article.fastest.rate
    assert all(near <= choice.rate <= article.fastest.rate for choice in article.ties)
    assert article.slower
    assert all(choice.rate < near for choice in article.slower)


def test_an_experiment_that_fits_is_among_its_own_ties() -> None:
    assert found("+exp=dsv3_128gpu_fits").ties[0].words == ()


def test_nothing_fits_into_nothing() -> None:
    none = found("+exp=dsv3_128gpu", "env.vars.XLA_PYTHON_CLIENT_MEM_FRACTION=0.05")
    assert not none.ties
    assert none.rejected["memory OVER"] > 0


def test_experts_that_do_not_divide_are_a_reason() -> None:
    odd = found("+exp=dsv3_128gpu", "+model.overrides.num_experts=48")
    assert odd.rejected["the experts do not divide over the expert axis"] > 0
    assert all(48 % choice.mesh.expert_parallel == 0 for choice in odd.ties)


def test_dimensions_that_do_not_divide_are_a_reason() -> None:
    wide = found("+exp=dsv3_1024gpu")
    assert any("does not divide over its shards" in reason for reason in wide.rejected)
    assert wide.ties[0].words == ()


def test_a_thousand_gpus_take_about_a_second() -> None:
    """Processor time, with room for a slow machine; docs/plan.md tells what was measured."""
    found("+exp=dsv3_1024gpu")
    start = time.process_time()
    found("+exp=dsv3_1024gpu")
    assert time.process_time() - start < 5
