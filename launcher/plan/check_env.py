"""Variables and XLA flags: names, values, and those that the launcher or the worker sets itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, shown, warning

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

FLAG = re.compile(r"xla_[a-z0-9_]+")

OWNED = {
    "JAX_COORDINATOR_IP": "the worker sets it for each process",
    "JAX_COORDINATOR_PORT": "the worker sets it for each attempt",
    "JAX_COORDINATOR_ADDRESS": "the worker sets JAX_COORDINATOR_IP and JAX_COORDINATOR_PORT",
    "JAX_COORDINATOR_BIND_ADDRESS": "the worker sets it where it is needed",
    "JAX_LOCAL_DEVICE_IDS": "the worker sets it for each process",
    "JAX_PLATFORMS": "it follows from hardware.platform",
    "NNODES": "the worker sets it to the number of processes",
    "NODE_RANK": "the worker sets it to the process's rank",
    "CUDA_VISIBLE_DEVICES": "MaxText would read it as the process's devices; the worker clears it and sets JAX_LOCAL_DEVICE_IDS",
    "SLURM_STEP_GPUS": "MaxText would read it as the process's devices; the worker clears it",
    "M_METRICS_FILE": "the worker gives it to rank 0 alone",
    "XLA_FLAGS": "flags are set one by one: +xla.flags.NAME=VALUE",
    "JAX_ENABLE_PGLE": "type xla.pgle=true instead",
}
"""Variables that launcher/node/environment.py sets or clears, and those that another group writes; with the reason."""

_BARE = str | int | float | bool


def _groups(case: Case) -> tuple[tuple[str, Mapping[str, object]], ...]:
    return ("env.vars", case.experiment.env.vars), ("fabric.vars", case.experiment.fabric.vars)


def _maxtext_key(case: Case, name: str) -> str | None:
    """The MaxText key that a variable M_<KEY> would set."""
    key = name.removeprefix("M_").lower() if name.startswith("M_") else ""
    return key if key in case.schema.keys else None


def _refused(case: Case, field: str, name: str, value: object) -> Issue | None:
    """Why this variable cannot be set, or None."""
    key = _maxtext_key(case, name)
    if not NAME.fullmatch(name):
        message = "a variable's name has letters, digits and _ only, and does not begin with a digit"
        right = re.sub(r"[^A-Za-z0-9_]", "_", name)
        right = right if NAME.fullmatch(right) else f"_{right}"
        return error("ENV_NAME", field, message, f"type ~{field} env.vars.{right}={shown(value)}")
    if name in OWNED:
        return error("ENV_OWNED", field, f"{name} cannot be set here: {OWNED[name]}", f"type ~{field}")
    if key:
        message = f"{name} would override MaxText's key {key} behind the config, and MaxText stops when both are set"
        return error("ENV_MAXTEXT_KEY", field, message, f"type ~{field} {case.field(key)}=VALUE")
    if not isinstance(value, _BARE):
        message = f"{name} is {'null' if value is None else 'a list or a mapping'}, wanted text or a number"
        return error("ENV_VALUE", field, message, f"type {field}='' for the empty text, or another value")
    if "\0" in str(value):
        return error("ENV_VALUE", field, f"{name} holds a NUL character, which no variable can", f"type ~{field}")
    return None


def variables(case: Case) -> Iterator[Issue]:
    """Every variable of env.vars and fabric.vars, and the names of env.secrets."""
    for group, found in _groups(case):
        for name, value in found.items():
            issue = _refused(case, f"{group}.{name}", str(name), value)
            if issue:
                yield issue
    for name in sorted(set(case.experiment.env.vars) & set(case.experiment.fabric.vars)):
        if case.experiment.env.vars[name] != case.experiment.fabric.vars[name]:
            message = f"{name} is set in env.vars and in fabric.vars, with different values"
            yield warning("ENV_TWICE", f"env.vars.{name}", message, f"type ~env.vars.{name} or ~fabric.vars.{name}")


def secret_names(case: Case) -> Iterator[Issue]:
    """`env.secrets` holds names; a value there is reported as a literal secret without being shown."""
    names = case.experiment.env.secrets
    for name in names:
        if not NAME.fullmatch(name):
            kept = ",".join(n for n in names if NAME.fullmatch(n))
            message = "env.secrets holds names of variables (letters, digits, _), and one of its entries is no name"
            yield error("ENV_SECRET_NAME", "env.secrets", message, f"type 'env.secrets=[{kept}]'")
            return
        for group, found in _groups(case):
            if name in found:
                message = f"{name} is a secret (env.secrets) and has a value in {group}"
                yield error("ENV_SECRET_TWICE", f"{group}.{name}", message, f"type ~{group}.{name}")
        if name in OWNED or _maxtext_key(case, name):
            message = f"{name} cannot come from the submitting environment: {OWNED.get(name, 'it would set a key of MaxText')}"
            kept = ",".join(n for n in names if n != name)
            yield error("ENV_OWNED", "env.secrets", message, f"type 'env.secrets=[{kept}]'")


def flags(case: Case) -> Iterator[Issue]:
    """An XLA flag that cannot be written is fatal at the start of every process."""
    for name, value in case.experiment.xla.flags.items():
        field = f"xla.flags.{name}"
        plain = str(name).lstrip("-").replace("-", "_").lower()
        if not FLAG.fullmatch(str(name)):
            right = plain if FLAG.fullmatch(plain) else "xla_NAME"
            message = f"{name} is no XLA flag's name: these begin with xla_, and the two dashes are put in front by the launcher"
            yield error("XLA_FLAG_NAME", field, message, f"type ~{field} +xla.flags.{right}={shown(value)}")
            continue
        text = str(value)
        if not isinstance(value, _BARE):
            message = (
                f"{name} is {'null' if value is None else 'a list or a mapping'}, wanted text, a number, true or false"
            )
            yield error("XLA_FLAG_VALUE", field, message, f"type {field}=VALUE with one value")
        elif text.splitlines() not in ([], [text]) or "\0" in text:
            yield error(
                "XLA_FLAG_VALUE",
                field,
                f"{name} has a line break in its value; XLA_FLAGS is one line",
                f"type {field}=VALUE on one line",
            )
        elif "'" in text and '"' in text:
            message = f"{name} has both kinds of quotes in its value; write it with one kind, or none"
            yield error("XLA_FLAG_VALUE", field, message, f"type {field}=VALUE with one kind of quotes")


RULES: tuple[Rule, ...] = (variables, secret_names, flags)
