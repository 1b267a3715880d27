"""Override words -> typed experiment, through Hydra's own loader; every mistake is an Issue, none is an exception.

Composing from the files costs tens of milliseconds, so the result of the group choices is kept: a sweep over values pays
for it once. Values are then applied by the same function of Hydra that `hydra.main` uses, one word at a time, so that each
wrong word is reported by itself. A test holds the result against Hydra's own composition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from launcher.config import files, groups, secrets
from launcher.config.overrides import Choice, as_list, is_hydra_word, is_open, kinds, read
from launcher.config.schema import OPEN_DICTS, Experiment
from launcher.issue import Issue, Severity

CONFIG_NAME = "config"


@dataclass(frozen=True)
class Composed:
    """`experiment` is None only when an issue is an error."""

    experiment: Experiment | None
    issues: tuple[Issue, ...] = ()


def register_schema() -> None:
    """Give Hydra the typed schema under the name that `conf/config.yaml` begins with."""
    ConfigStore.instance().store(name="experiment_schema", node=Experiment)


def _first_line(error: BaseException) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause) if str(cause).strip() else str(error)
    return re.sub(r"\s+", " ", re.split(r"\n\s*(?:full_key|object_type|reference_type)", text)[0]).strip()


def _value_issue(override: Override, error: BaseException) -> Issue:
    key = override.key_or_group
    plain = kinds(key)
    wanted = getattr(plain[0], "__name__", str(plain[0]).replace("typing.", "")) if len(plain) == 1 else str(plain)
    listed = as_list(override.input_line or "")
    hint = f"type {listed}: it is a list" if listed else f"type {key}=VALUE with a value of type {wanted}"
    return Issue(
        "VALUE_TYPE",
        Severity.ERROR,
        key,
        f"`{override.input_line}`: {_first_line(error)}",
        hint,
    )


def _apply(choice: Choice, config: DictConfig) -> Issue | None:
    """Set one value; the `+` that Hydra wants for a new key of an open dictionary is not the user's concern."""
    override = choice.override
    try:
        if override.is_delete():
            ConfigLoaderImpl._apply_overrides_to_config([override], config)
        else:
            key = override.key_or_group
            OmegaConf.update(config, key, override.value(), merge=True, force_add=is_open(key) or key in OPEN_DICTS)
    except (OmegaConfBaseException, HydraException) as error:
        return _value_issue(override, error)
    return None


def _chosen_twice(choices: Sequence[Choice]) -> list[Issue]:
    """A group that was chosen by two words: which one is meant cannot be told."""
    names: dict[str, list[str]] = {}
    for choice in choices:
        if choice.group:
            names.setdefault(choice.group, []).append(str(choice.override.value()))
    return [
        Issue(
            "OPTION_TWICE",
            Severity.ERROR,
            group,
            f"{group} is chosen {len(found)} times: {', '.join(found)}",
            f"keep one {group}=NAME",
        )
        for group, found in names.items()
        if len(found) > 1
    ]


class Composer:
    """Composes experiments from one search path and remembers what the group choices gave."""

    def __init__(self, path: Sequence[Path] = (groups.CONF_DIR,)) -> None:
        register_schema()
        self.path = tuple(path)
        search_path = create_config_search_path(str(self.path[-1]))
        for folder in reversed(self.path[:-1]):
            search_path.prepend(provider="launcher", path=str(folder))
        self._loader = ConfigLoaderImpl(search_path)
        self._bases: dict[tuple[str, ...], DictConfig] = {}

    def _base(self, chosen: tuple[str, ...]) -> DictConfig:
        if chosen not in self._bases:
            config = self._loader.load_configuration(CONFIG_NAME, list(chosen), RunMode.RUN)
            with open_dict(config):
                del config["hydra"]
            self._bases[chosen] = config
        return self._bases[chosen].copy()

    def _config(self, words: Sequence[str]) -> tuple[DictConfig | None, list[Issue]]:
        """The config of these words and what is wrong with them; None when no config file can stand behind them."""
        read_words = [read(word, self.path) for word in words if not is_hydra_word(word)]
        for_hydra = tuple(word for word in words if is_hydra_word(word))
        issues = [w for w in read_words if isinstance(w, Issue)]
        choices = [w for w in read_words if isinstance(w, Choice)]
        chosen = {c.group: str(c.override.value()) for c in choices if c.group}
        issues += _chosen_twice(choices)
        if "exp" not in chosen and not any(i.field == "exp" for i in issues):
            names = ", ".join(groups.options("exp", self.path))
            issues.append(
                Issue(
                    "EXPERIMENT_MISSING",
                    Severity.ERROR,
                    "exp",
                    "no experiment was named",
                    f"add +exp=NAME. There are: {names}",
                )
            )
        config = None
        if "exp" in chosen:
            try:
                named = ((f"+{group}" if group == "exp" else group) + f"={name}" for group, name in chosen.items())
                config = self._base((*named, *for_hydra))
            except (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
                asked = " ".join(f"{group}={name}" for group, name in chosen.items())
                message = f"{asked}: {_first_line(error)}"
                broken = Issue("CONFIG_FILE", Severity.ERROR, "exp", message, "mend the config file that it names")
                issues += files.explain(message, chosen, self.path) or [broken]
        # Without a config the values are still held against the bare schema, so that every mistake is told at once.
        judged = config if config is not None else OmegaConf.structured(Experiment)
        applied = [_apply(choice, judged) for choice in choices if not choice.group]
        literals = secrets.in_words(words)
        return config, [secrets.hide_in(issue, literals) for issue in (*issues, *applied) if issue]

    def compose(self, words: Sequence[str]) -> Composed:
        """The typed experiment of these override words, or every reason why there is none."""
        config, issues = self._config(words)
        if config is None or issues:
            return Composed(None, tuple(issues))
        try:
            experiment: Any = OmegaConf.to_object(config)
        except MissingMandatoryValue:
            missing = sorted(OmegaConf.missing_keys(config))
            return Composed(
                None,
                tuple(
                    Issue("VALUE_MISSING", Severity.ERROR, key, f"{key} has no value", f"add {key}=VALUE")
                    for key in missing
                ),
            )
        except OmegaConfBaseException as error:
            return Composed(
                None,
                (
                    Issue(
                        "INTERPOLATION",
                        Severity.ERROR,
                        str(error.full_key or ""),
                        _first_line(error),
                        "mend the ${...} in that value",
                    ),
                ),
            )
        return Composed(experiment)
