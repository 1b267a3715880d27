"""Plans of shipped experiments, composed once a session."""

from collections.abc import Callable

import pytest

from launcher.config.compose import Composer
from launcher.plan.plan import Plan, make

PlanOf = Callable[..., Plan]


@pytest.fixture(scope="session")
def plan_of() -> PlanOf:
    """`plan_of("+exp=NAME", "KEY=VALUE", ...)`: the plan, errors and all."""
    composer = Composer()

    def of(*words: str) -> Plan:
        composed = composer.compose(words)
        assert composed.experiment is not None, composed.issues
        return make(composed.experiment)

    return of
