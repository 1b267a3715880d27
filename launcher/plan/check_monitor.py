"""monitor.*: the words of each policy, budgets by kind, and what watching needs from elsewhere in the experiment."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.schema import Monitor
from launcher.issue import Issue
from launcher.node.policy import WORDS
from launcher.plan.case import Case, Rule, error, shown, warning
from launcher.suggest import suggest

NODE_CHECKS = ("none", "quick", "full", "only")
PORTS = range(1024, 65536)
"""A trainer need not be root."""


def words(case: Case) -> Iterator[Issue]:
    """A policy that does not exist."""
    monitor = case.experiment.monitor
    for key, known in (*WORDS.items(), ("node_check", NODE_CHECKS)):
        seen = getattr(monitor, key)
        if seen not in known:
            likely = next(iter(suggest(seen, known, 1)), getattr(Monitor(), key))
            message = f"monitor.{key}={shown(seen)}: there is {', '.join(known[:-1])} and {known[-1]}"
            yield error("MONITOR_WORD", f"monitor.{key}", message, f"type monitor.{key}={likely}")


def kinds(case: Case) -> Iterator[Issue]:
    """A budget of a kind is a whole number."""
    for kind, seen in case.experiment.monitor.max_of_kind.items():
        if not isinstance(seen, int) or isinstance(seen, bool) or seen < 0:
            field = f"monitor.max_of_kind.{kind}"
            message = f"{field}={shown(seen)}: wanted how often it may happen, 0 or more"
            yield error("MONITOR_KIND", field, message, f"type +{field}=3")


def telling(case: Case) -> Iterator[Issue]:
    """The endpoint's port, and the webhook's URL, which is a secret."""
    monitor, secrets = case.experiment.monitor, case.experiment.env.secrets
    port, name = monitor.metrics_port, monitor.webhook
    if port is not None and port not in PORTS:
        message = f"monitor.metrics_port={port}: wanted {PORTS[0]} to {PORTS[-1]}"
        yield error("MONITOR_PORT", "monitor.metrics_port", message, "type monitor.metrics_port=9400")
    if name is not None and name not in secrets:
        is_url = "://" in name
        message = (
            "monitor.webhook holds a URL, which would stand in the bundle for all to read: wanted the name of a variable"
            if is_url
            else f"monitor.webhook={shown(name)} is not among env.secrets, so that nobody passes its value on"
        )
        typed = "WEBHOOK_URL" if is_url else name
        hint = f"export {typed}=URL, and type monitor.webhook={typed} env.secrets=[{','.join([*secrets, typed])}]"
        yield error("MONITOR_WEBHOOK", "monitor.webhook", message, hint)


def rollback(case: Case) -> Iterator[Issue]:
    """What cannot be: no checkpoint to go back to, MaxText's own end at a NaN before the monitor's, no overflow report."""
    monitor, checkpointing = case.experiment.monitor, case.values.flag("enable_checkpointing")
    for key in ("loss_spike", "grad_spike", "imbalance"):
        if getattr(monitor, key) == "rollback" and not checkpointing:
            message = f"monitor.{key}=rollback without checkpoints: it would go back to step 0"
            yield warning(
                "MONITOR_ROLLBACK", f"monitor.{key}", message, f"type checkpoint=periodic, or monitor.{key}=stop"
            )
    if monitor.nan == "warn" and (case.values.flag("abort_on_nan_loss") or case.values.flag("abort_on_inf_loss")):
        message = "monitor.nan=warn, but MaxText ends the training at the first loss that is no number"
        hint = "type +maxtext.abort_on_nan_loss=false +maxtext.abort_on_inf_loss=false, or monitor.nan=stop"
        yield warning("MONITOR_NAN", "monitor.nan", message, hint)


RULES: tuple[Rule, ...] = (words, kinds, telling, rollback)
