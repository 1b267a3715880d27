import json
from pathlib import Path

import pytest

from launcher.config.groups import options
from launcher.node.launch import read_launch
from launcher.render.launch import json_text, launch


@pytest.mark.parametrize("name", options("exp"))
def test_the_worker_reads_what_the_plan_says(name: str, plan_of, tmp_path: Path) -> None:
    plan = plan_of(f"+exp={name}")
    file = tmp_path / "launch.json"
    file.write_text(json_text(launch(plan)))
    read = read_launch(file)
    keys = plan.settings.keys
    assert (read.nodes, read.processes, read.platform) == (
        plan.mesh.nodes,
        plan.mesh.gpus,
        plan.experiment.hardware.platform,
    )
    assert read.arguments == plan.settings.arguments
    assert (read.steps, read.checkpointing, read.checkpoint_period) == (
        keys["steps"],
        keys["enable_checkpointing"],
        keys["checkpoint_period"],
    )
    assert read.output_directory == plan.experiment.checkpoint.directory
    assert (read.nodes_per_domain, read.numa) == (plan.mesh.nodes_per_domain, plan.experiment.hardware.gpus_per_numa)
    assert read.restarts.failures == plan.experiment.monitor.max_failures
    assert read.srun[:1] == (("--ntasks-per-node=1",) if plan.experiment.target.kind == "slurm" else ())
    assert (read.container is None) == (plan.experiment.container.image is None)


def test_a_model_override_goes_on_the_command_line(plan_of) -> None:
    told = launch(plan_of("+exp=dsv3_128gpu", "+model.overrides.base_num_decoder_layers=8"))
    assert told["arguments"] == {"base_num_decoder_layers": 8}


def test_steps_set_by_their_maxtext_name_are_the_steps_that_finish_the_run(plan_of) -> None:
    assert launch(plan_of("+exp=dsv3_128gpu", "+maxtext.steps=7"))["steps"] == 7


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), {"te_scan_constants": False}),
        (("trainer.workarounds=[te_scan_constants]",), {"te_scan_constants": True}),
        (("trainer.workarounds=[te_scan_constants]", "trainer.scan_layers=false"), {}),
        (("trainer.workarounds=[te_compile_cache]",), {"te_scan_constants": False, "te_compile_cache": True}),
        (
            ("trainer.workarounds=[te_compile_cache]", "moe=dropless", "trainer.scan_layers=false"),
            {"te_compile_cache": True},
        ),
        (("trainer.workarounds=[te_compile_cache]", "hardware.platform=cpu"), {}),
        (
            ("mesh.dcn.fsdp=1", "mesh.dcn.data=2", "trainer.workarounds=[te_data_axis]", "trainer.scan_layers=false"),
            {"te_data_axis": True},
        ),
        (("trainer.workarounds=[te_data_axis]", "trainer.scan_layers=false"), {}),
        (("trainer.scan_layers=true", "+maxtext.te_moe_block=false"), {}),
        (("moe=dropless", "precision=bf16"), {}),
        (("hardware.platform=cpu",), {}),
    ],
)
def test_a_workaround_stands_there_where_it_concerns_the_experiment(words, told, plan_of, tmp_path) -> None:
    file = tmp_path / "launch.json"
    file.write_text(json_text(launch(plan_of("+exp=dsv3_128gpu", *words))))
    assert read_launch(file).workarounds == told


def test_secrets_are_names_only(plan_of) -> None:
    told = launch(plan_of("+exp=dsv3_128gpu", "env.secrets=[HF_TOKEN,A_KEY]"))
    assert told["secrets"] == ["A_KEY", "HF_TOKEN"]
    assert json.loads(json_text(told)) == told


@pytest.mark.parametrize(
    ("image", "file"),
    [
        ("ghcr.io/nvidia/jax:maxtext-2026-09-09", "/shared/images/ghcr.io+nvidia+jax+maxtext-2026-09-09.sqsh"),
        ("docker://me@host:5000/jax@sha256:0a1b", "/shared/images/me+host+5000+jax+sha256+0a1b.sqsh"),
        ("/elsewhere/jax.sqsh", None),
    ],
)
def test_an_image_of_a_registry_becomes_a_file_where_there_is_a_folder_for_it(image, file, plan_of, tmp_path) -> None:
    words = ["+exp=dsv3_128gpu", f"container.image='{image}'"]
    (tmp_path / "launch.json").write_text(json_text(launch(plan_of(*words, "container.import_folder=/shared/images/"))))
    assert read_launch(tmp_path / "launch.json").container.file == file
    assert launch(plan_of(*words))["container"]["file"] is None


@pytest.mark.parametrize(
    ("words", "seed"),
    [
        ((), None),  # synthetic: one batch for ever
        (("data=grain",), 0),
        (("data=grain", "+maxtext.data_shuffle_seed=7"), 7),
        (("data=grain", "+maxtext.enable_data_shuffling=false"), None),
        (("data=grain", "data.grain_file_type=mmap_npy"), None),
        (("data=hf",), 0),
    ],
)
def test_the_seed_is_named_where_another_one_brings_other_data(words, seed, plan_of, tmp_path) -> None:
    told = launch(plan_of("+exp=dsv3_128gpu_fits", *words))
    assert told["data_seed"] == seed
    (tmp_path / "launch.json").write_text(json_text(told))
    read = read_launch(tmp_path / "launch.json")
    assert (read.data_seed, read.largest_factor) == (seed, told["largest_factor"])
