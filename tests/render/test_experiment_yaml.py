import dataclasses

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.groups import options
from launcher.config.schema import Env, Experiment, Hardware, Model, Trainer, Xla
from launcher.render import experiment


@pytest.mark.parametrize("name", options("exp"))
def test_every_experiment_loads_back_as_it_was(name: str, plan_of) -> None:
    asked = plan_of(f"+exp={name}").experiment
    assert experiment.load(experiment.text(asked)) == asked


def small(**given: object) -> Experiment:
    return Experiment(
        name="x",
        model=Model(name="m"),
        hardware=Hardware(name="h", gpus_per_node=4),
        trainer=Trainer(maxtext="0.2.5", module="m", steps=1, per_device_batch_size=0.5, max_target_length=8),
        **given,
    )


def test_odd_values_load_back() -> None:
    asked = small(
        description="a: #b ${c} \\${d}\nnext",
        env=Env(vars={"A": "007", "B": "", "C": "x\ny", "D": None, "YES": True}, secrets=["HF_TOKEN"]),
        xla=Xla(flags={"xla_b": "'A,B'", "xla_a": 1.5}),
        maxtext={"list": [1, "1", None, {"a": "b"}], "none": None, "empty": {}},
    )
    assert experiment.load(experiment.text(asked)) == asked


def test_the_order_in_which_dictionaries_were_filled_does_not_matter() -> None:
    one, other = small(maxtext={"a": 1, "b": 2}), small(maxtext={"b": 2, "a": 1})
    assert experiment.text(one) == experiment.text(other)


def test_the_schemas_order_is_kept_and_plain_yaml_reads_it() -> None:
    read = OmegaConf.to_container(OmegaConf.create(experiment.text(small())))
    names = [field.name for field in dataclasses.fields(Experiment)]
    assert list(read) == [name for name in names if name in read]


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(OmegaConfBaseException, match="nodez"):
        experiment.load("name: x\nnodez: 3\n")
