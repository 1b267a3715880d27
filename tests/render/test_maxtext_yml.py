import re

import pytest
import yaml
from omegaconf import OmegaConf

from launcher.config import maxtext_schema
from launcher.config.groups import options
from launcher.plan.settings import ALWAYS
from launcher.render import maxtext


@pytest.mark.parametrize("name", options("exp"))
def test_both_readers_see_exactly_the_settings_of_every_experiment(name: str, plan_of) -> None:
    plan = plan_of(f"+exp={name}")
    text = maxtext.text(plan.settings.file)
    expected = {"base_config": "base.yml", **plan.settings.file}
    assert yaml.safe_load(text) == expected
    assert OmegaConf.to_container(OmegaConf.create(text), resolve=True) == expected
    assert text.startswith("#")
    assert next(line for line in text.splitlines() if not line.startswith("#")) == "base_config: base.yml"
    assert expected.keys() <= maxtext_schema.load(plan.experiment.trainer.maxtext).keys.keys()


def test_every_key_stands_in_its_section_and_the_users_own_come_last() -> None:
    text = maxtext.text(
        {"steps": 1, "z_loss_multiplier": 0.1, "model_name": "m", "adam_b1": 0.9, "ici_fsdp_parallelism": 2, **ALWAYS}
    )
    titles = re.findall(r"^\n# (.*)$", text, flags=re.MULTILINE)
    assert titles == [maxtext.TITLES[name] for name in ("start", "mesh", "trainer", "always", "own")]
    assert text.index("adam_b1") < text.index("z_loss_multiplier")
    assert text.index("z_loss_multiplier") > text.index("enable_autocheckpoint")


def test_the_choices_of_the_launcher_say_why() -> None:
    text = maxtext.text(ALWAYS)
    for key in ("enable_autocheckpoint", "save_checkpoint_on_start"):
        assert re.search(rf"^# .+\n{key}: ", text, flags=re.MULTILINE), key


def test_every_reason_is_for_a_key_that_maxtext_has() -> None:
    for version in maxtext_schema.versions():
        assert maxtext.REASONS.keys() <= maxtext_schema.load(version).keys.keys()


def test_a_users_strings_reach_maxtext_as_they_were_typed(plan_of) -> None:
    plan = plan_of(
        "+exp=dsv3_128gpu", "+maxtext.hf_eval_files='a: ${b} #c'".replace("${", "\\${"), "+maxtext.dataset_name='007'"
    )
    read = OmegaConf.create(maxtext.text(plan.settings.file))
    assert read.hf_eval_files == "a: ${b} #c"
    assert read.dataset_name == "007"
