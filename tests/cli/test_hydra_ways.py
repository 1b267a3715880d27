"""What people know from Hydra goes on working."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_words import ENVIRONMENT, launcher

from launcher.cli.hydra_ways import points
from launcher.config.groups import CONF_DIR
from launcher.issue import Refused


def test_cfg_prints_the_config_with_options_between_the_overrides(tmp_path: Path) -> None:
    done = launcher("+exp=dsv3_128gpu", "--cfg", "job", "mesh.ici.expert=4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert config["mesh"]["ici"]["expert"] == 4
    assert config["trainer"]["attention"] == "cudnn_flash_te"
    part = launcher("--cfg", "job", "-p", "mesh", "exp=dsv3_128gpu", "+maxtext.z_loss_multiplier=1e-4", cwd=tmp_path)
    assert set(yaml.safe_load(part.stdout)) == {"ici", "dcn"}


@pytest.mark.parametrize("info", ["defaults", "defaults-tree", "searchpath", "config"])
def test_info_says_how_it_came_about(info: str, tmp_path: Path) -> None:
    done = launcher("+exp=dsv3_128gpu", "--info", info, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dsv3_128gpu" in done.stdout or info == "searchpath"


def test_a_typo_is_ours_to_answer_there_too(tmp_path: Path) -> None:
    done = launcher("--cfg", "job", "+exp=dsv3_128gpu", "mesh.ici.expertt=4", cwd=tmp_path)
    assert done.returncode == 1
    assert "mesh.ici.expert" in done.stderr
    assert "append" not in done.stderr


def test_hydra_help(tmp_path: Path) -> None:
    assert "Hydra" in launcher("--hydra-help", cwd=tmp_path).stdout


def test_a_sweep_is_every_combination_in_hydras_order() -> None:
    found = points(["+exp=moe_tiny_cpu", "trainer.steps=3,4", "trainer.per_device_batch_size=range(1,3)"], (CONF_DIR,))
    assert [point[1:] for point in found] == [
        ["trainer.steps=3", "trainer.per_device_batch_size=1"],
        ["trainer.steps=3", "trainer.per_device_batch_size=2"],
        ["trainer.steps=4", "trainer.per_device_batch_size=1"],
        ["trainer.steps=4", "trainer.per_device_batch_size=2"],
    ]


def test_a_sweep_over_experiments_may_be_a_pattern() -> None:
    found = points(["+exp=glob(dsv3_*,exclude=*fits)"], (CONF_DIR,))
    assert {point[0] for point in found} == {
        "+exp=dsv3_1024gpu",
        "+exp=dsv3_128gpu",
        "+exp=dsv3_256gpu",
        "+exp=dsv3_512gpu",
    }


def test_a_sweep_over_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        points(["+exp=moe_tiny_cpu,moe_tiny_gpu", "trainer.stepps=1,2"], (CONF_DIR,))
    assert [issue.code for issue in refused.value.issues] == ["OPTION_UNKNOWN", "KEY_UNKNOWN"]


def test_one_bad_point_stops_the_whole_sweep_before_it_starts(tmp_path: Path) -> None:
    done = launcher("-m", "+exp=moe_tiny_cpu", "mesh.ici.expert=2,3", cwd=tmp_path)
    assert done.returncode == 1
    assert "mesh.ici.expert=3" in done.stderr
    assert "1 of 2 points" in done.stderr
    assert not (tmp_path / "runs").exists()


def completed(line: str, tmp_path: Path) -> set[str]:
    """What bash offers after `line`, by Hydra's own bash function, for the installed command."""
    command = tmp_path / "launcher"
    command.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.argv[0] = \'launcher\'; from launcher.__main__ import entry; entry()" "$@"\n'
    )
    command.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH
        eval "$(launcher -sc install=bash)"
        COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        hydra_bash_completion
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("launcher +exp=dsv3_1", {"+exp=dsv3_128gpu", "+exp=dsv3_128gpu_fits", "+exp=dsv3_1024gpu"}),
        ("launcher plan +exp=dsv3_5", {"+exp=dsv3_512gpu"}),
        ("launcher plan +exp=dsv3_128gpu mesh.ici.exp", {"mesh.ici.expert="}),
        ("launcher +exp=dsv3_128gpu xla=art", {"xla=article"}),
    ],
)
def test_bash_completes_groups_and_keys_also_after_a_verb(line: str, offered: set[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == offered
