"""What Hydra itself offers on a command line (`--cfg`, `--info`, completion, sweeper plugins) and `-m` sweeps.

Hydra's own entry point cannot be used as it is: it refuses options between overrides and answers a typo with "append to
your config use +". So its application object is built here, on the launcher's search path, and asked for one thing.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.issue import Issue, Refused, Severity

OPTIONS = ("cfg", "info", "hydra_help", "shell_completion")
"""Options of the `submit` verb that are Hydra's to answer."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Hydra's options, by its own names."""
    group = parser.add_argument_group("Hydra")
    group.add_argument("-m", "--multirun", action="store_true", help="a sweep: KEY=A,B runs one job a value")
    group.add_argument(
        "--cfg", "-c", choices=["job", "hydra", "all"], help="print the composed config instead of running"
    )
    group.add_argument("--package", "-p", help="with --cfg: only this part")
    group.add_argument("--resolve", action="store_true", help="with --cfg: interpolations resolved")
    group.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
        help="how the config came about",
    )
    group.add_argument("--hydra-help", action="store_true", help="Hydra's own help")
    group.add_argument(
        "--shell-completion", "-sc", action="store_true", help='tab completion: eval "$(launcher -sc install=bash)"'
    )


@contextmanager
def _hydra(path: Sequence[Path]) -> Iterator[Any]:
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    from launcher.config.compose import register_schema

    register_schema()
    version.setbase("1.3")
    search_path = create_config_search_path(str(path[-1]))
    for folder in reversed(path[:-1]):
        search_path.prepend(provider="launcher", path=str(folder))
    try:
        yield Hydra.create_main_hydra2(task_name="launcher", config_search_path=search_path)
    finally:
        GlobalHydra.instance().clear()


def hydra_words(words: Sequence[str], path: Sequence[Path], sweep: bool = False) -> list[str]:
    """The overrides as strict Hydra wants them, `+` where it must be; words for Hydra itself pass as they are.

    Raises:
        Refused: with an issue for each word that is wrong.
    """
    from launcher.config.overrides import is_hydra_word, is_open, read

    issues, legal = [], []
    for word in words:
        if is_hydra_word(word):
            legal.append(word)
            continue
        key, _, value = word.lstrip("+").partition("=")
        known = read(word, path, sweep=sweep)
        if isinstance(known, Issue):
            issues.append(known)
        elif word.startswith("~"):
            legal.append(word)
        else:
            legal.append(f"{'+' if key == 'exp' else '++' if is_open(key) else ''}{key}={value}")
    if issues:
        raise Refused(*issues)
    return legal


def answer(options: argparse.Namespace, words: Sequence[str], path: Sequence[Path]) -> int:
    """Let Hydra answer `--cfg`, `--info`, `--hydra-help` or a completion query."""
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException

    from launcher.config.compose import CONFIG_NAME

    with _hydra(path) as hydra:
        if options.shell_completion:
            # The completion reads the typed line from the environment; the verb in it is not Hydra's.
            os.environ["COMP_LINE"] = re.sub(
                r"^(\s*\S+\s+)(?:plan|render|submit|preflight|diff)\b", r"\1", os.environ.get("COMP_LINE", "")
            )
            hydra.shell_completion(config_name=CONFIG_NAME, overrides=list(words))
            return 0
        legal = hydra_words(words, path, sweep=options.multirun)
        try:
            if options.cfg:
                hydra.show_cfg(
                    config_name=CONFIG_NAME,
                    overrides=legal,
                    cfg_type=options.cfg,
                    package=options.package,
                    resolve=options.resolve,
                )
            elif options.info:
                hydra.show_info(options.info, config_name=CONFIG_NAME, overrides=legal)
            else:
                parser = get_args_parser()
                hydra.hydra_help(config_name=CONFIG_NAME, args_parser=parser, args=parser.parse_args(["--hydra-help"]))
        except HydraException as error:
            raise Refused(
                Issue(
                    "HYDRA", Severity.ERROR, "", str(error), "`python -m launcher plan` with the same words says more"
                )
            ) from error
    return 0


def points(words: Sequence[str], path: Sequence[Path]) -> list[list[str]]:
    """The jobs of a sweep, each as its own override words, in the order of Hydra's basic sweeper.

    Raises:
        Refused: with an issue for each word that is wrong.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    legal = hydra_words(words, path, sweep=True)
    with _hydra(path) as hydra:
        parsed = OverridesParser.create(config_loader=hydra.config_loader).parse_overrides(legal)
        return [list(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]


def multirun(words: Sequence[str], path: Sequence[Path], task: Callable[[Any], object]) -> None:
    """A sweep by the sweeper or launcher plugin that the words name (hydra/sweeper=...); `task` gets each typed experiment."""
    from omegaconf import OmegaConf, open_dict

    from launcher.config.compose import CONFIG_NAME

    def job(config: Any) -> object:
        with open_dict(config):
            config.pop("hydra", None)
        return task(OmegaConf.to_object(config))

    legal = hydra_words(words, path, sweep=True)
    with _hydra(path) as hydra:
        hydra.multirun(config_name=CONFIG_NAME, task_function=job, overrides=legal)
