"""Secrets written as literals. They would lie in the bundle, the queue's record and every log; no text here repeats one."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.schema import OPEN_DICTS
from launcher.config.secrets import find, format_of, hide, sounds_secret
from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error

LISTS = ("target.slurm.setup", "container.mounts")
"""Fields that are lists: null would not take their place."""


def literals(case: Case) -> Iterator[Issue]:
    """One issue for each place that holds a secret."""
    secrets = find(case.experiment)
    for path, _, what, usual in secrets:
        base, _, name = path.rpartition(".")
        variable = name if base in ("env.vars", "fabric.vars") and sounds_secret(name) else usual
        # A variable's name is safe to show, a path is not when the secret stands where a name should be.
        field = hide(path, secrets)
        away = "" if field != path else f"~{path} " if base in OPEN_DICTS else f"{path}=null "
        away = f"'{path}=[]' " if path in LISTS else away
        away = f"'{path}=[{variable}]' " if path == "env.secrets" else away
        names = [*(n for n in case.experiment.env.secrets if format_of("", n) is None), variable]
        listed = "" if path == "env.secrets" else f"'env.secrets=[{','.join(dict.fromkeys(names))}]' "
        message = f"the value looks like {what}; written here it would be stored in the bundle and shown by the queue"
        yield error("SECRET_LITERAL", field, message, f"type {away}{listed}and export {variable} where you submit")


RULES: tuple[Rule, ...] = (literals,)
