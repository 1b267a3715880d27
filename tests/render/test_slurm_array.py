"""array.sbatch: what runs of one shape share, and what each has for itself. tests/targets/test_slurm_sweeps.py runs it."""

import re

import pytest

from launcher.render import slurm_array
from launcher.render.bundle import render


@pytest.fixture
def scripts(plan_of):
    def made(*points: str) -> dict[str, str]:
        bundles = [render(plan_of("+exp=dsv3_128gpu", *point.split())) for point in points]
        return {bundle.name: bundle.artefact for bundle in bundles}

    return made


def options(text: str) -> list[str]:
    return re.findall(r"^#SBATCH .*", text, re.M)


def test_the_options_are_those_of_each_run(scripts):
    found = scripts("trainer.steps=5", "trainer.steps=6", "trainer.steps=7")
    text = slurm_array.array(found)
    own = {"#SBATCH --array=0-2", "#SBATCH --output=array-%A_%a.log"}
    for script in found.values():
        assert set(options(text)) - own == set(options(script)) - {"#SBATCH --output=../slurm-%j.log"}
    assert own <= set(options(text))
    assert re.findall(r"^    (\S+)  # (\d)$", text, re.M) == [(name, str(task)) for task, name in enumerate(found)]


def test_what_a_shape_is(scripts):
    points = ("", "name=other", "target.slurm.setup=[true]", "target.slurm.time_minutes=60", "target.slurm.partition=b")
    same = [slurm_array.shape(script) for script in scripts(*points).values()]
    assert same[0] == same[1] == same[2]
    assert len(set(same)) == 3
    with pytest.raises(ValueError, match="one shape"):
        slurm_array.array(scripts("", "target.slurm.time_minutes=60"))


def test_names_and_limits(scripts):
    two = scripts("", "name=other")
    text = slurm_array.array(two, at_once=1)
    assert "#SBATCH --job-name=sweep" in options(text)
    assert "#SBATCH --array=0-1%1" in options(text)
    assert slurm_array.sweep_name(text).startswith("sweep-")
    assert slurm_array.sweep_name(text) != slurm_array.sweep_name(slurm_array.array(two))
    assert slurm_array.sweep_name(slurm_array.array(scripts("", "trainer.steps=7"))).startswith("dsv3_128gpu-")
