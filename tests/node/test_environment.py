"""What every trainer process gets, and what it does not."""

import json
from pathlib import Path

import pytest
from launches import LAUNCH

from launcher.node.codes import WorkerError
from launcher.node.environment import (
    PROGRAM,
    argument,
    command,
    maxtext_keys,
    overridden,
    ranks_here,
    read_env,
    read_xla_flags,
    trainer_environments,
)
from launcher.node.launch import Launch, read_adjustments, read_launch
from launcher.node.layout import AttemptFolder, RunFolder
from launcher.node.place import Place
from launcher.node.policy import WORDS
from launcher.node.trainer import NOT_COMPILED

ATTEMPT = AttemptFolder(Path("/runs/demo/attempts/3"))


def launch(**changes):
    settings = {
        "nodes": 2,
        "processes_per_node": 4,
        "platform": "gpu",
        "start": "env",
        "module": "maxtext.trainers.pre_train.train",
        "arguments": {},
        "steps": 10,
        "checkpointing": True,
        "checkpoint_period": 5,
        "output_directory": None,
        "stop_grace_seconds": 60,
        "coordinator_timeout_seconds": 60,
    }
    return Launch(**{**settings, **changes})


def environments(environ=None, bundle=None, flags="", jit=Path("/tmp/jit"), place=None, **changes):
    place = place or Place("SLURM", 2, 1, "n0", 23456)
    return trainer_environments(
        environ or {}, bundle or {}, flags, launch(**changes), place, attempt=ATTEMPT, jit_cache=jit
    )


def test_coordinates_of_the_second_node():
    for local, env in enumerate(environments()):
        assert env == {
            "JAX_COORDINATOR_IP": "n0",
            "JAX_COORDINATOR_PORT": "23456",
            "NNODES": "8",
            "NODE_RANK": str(4 + local),
            "JAX_LOCAL_DEVICE_IDS": str(local),
            "NCCL_EP_JIT_CACHE_DIR": "/tmp/jit",
        }


def test_rank_0_alone_writes_the_metrics():
    first = environments(environ={"M_METRICS_FILE": "/else"}, place=Place("SLURM", 2, 0, "n0", 23456))
    assert [env.get("M_METRICS_FILE") for env in first] == ["/runs/demo/attempts/3/metrics.jsonl", None, None, None]
    assert all("M_METRICS_FILE" not in env for env in environments(environ={"M_METRICS_FILE": "/else"}))


def test_cpu_on_this_machine():
    env = environments(platform="cpu", nodes=1, jit=None, place=Place("local", 1, 0, "127.0.0.1", 20001))[0]
    assert env["JAX_PLATFORMS"] == "cpu"
    assert env["JAX_COORDINATOR_BIND_ADDRESS"] == "127.0.0.1:20001"
    assert "NCCL_EP_JIT_CACHE_DIR" not in env


def test_what_would_change_the_run_is_dropped():
    stray = {
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_STEP_GPUS": "0,1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": "else:1",
        "XLA_FLAGS": "--xla_stray=1",
        "M_STEPS": "7",
        "NCCL_DEBUG": "WARN",
    }
    kept = {"PATH": "/bin", "HOME": "/root", "SLURM_JOB_ID": "42"}
    env = environments({**stray, **kept}, bundle={"NCCL_DEBUG": "INFO"})[0]
    assert {name: env.get(name) for name in stray} == {**dict.fromkeys(stray), "NCCL_DEBUG": "INFO"}
    assert {name: env[name] for name in kept} == kept
    assert overridden({**stray, **kept}, {"NCCL_DEBUG": "INFO"}) == sorted(stray)


def test_xla_flags_join_those_of_the_bundles_env():
    assert environments(bundle={"XLA_FLAGS": "--a=1"}, flags="--b=2")[0]["XLA_FLAGS"] == "--a=1 --b=2"
    assert environments(bundle={"XLA_FLAGS": "--a=1"})[0]["XLA_FLAGS"] == "--a=1"
    assert "XLA_FLAGS" not in environments()[0]


def test_read_xla_flags(tmp_path):
    path = tmp_path / "xla_flags"
    path.write_text("--xla_gpu_enable_command_buffer='FUSION,CUBLAS'\n\n--xla_b=2\n")
    assert read_xla_flags(path) == "--xla_gpu_enable_command_buffer='FUSION,CUBLAS' --xla_b=2"
    path.write_text("xla_b=2\n")
    with pytest.raises(WorkerError, match="'xla_b=2' is no XLA flag"):
        read_xla_flags(path)


def test_read_env(tmp_path):
    path = tmp_path / "env"
    path.write_text("# said once\nexport A='x y'\"'\"'z'\nexport B='$HOME #1'\nexport C='one\ntwo'\nexport D=''\n")
    assert read_env(path) == {"A": "x y'z", "B": "$HOME #1", "C": "one\ntwo", "D": ""}


@pytest.mark.parametrize("text", ["export A", "export 1A=2", "A='open", "rm -rf x"])
def test_read_env_refuses(tmp_path, text):
    path = tmp_path / "env"
    path.write_text(text + "\n")
    with pytest.raises(WorkerError) as error:
        read_env(path)
    assert error.value.code == 78
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "k=true"),
        (False, "k=false"),
        (None, "k=null"),
        (7, "k=7"),
        (1.25, "k=1.25"),
        (1e-05, "k=1e-05"),
        ("deepseek3-671b", "k=deepseek3-671b"),
        ("gs://bucket/a.b", "k=gs://bucket/a.b"),
        ("/runs/x y", 'k="/runs/x y"'),
        ("007", 'k="007"'),
        ("1e3", 'k="1e3"'),
        ("no", 'k="no"'),
        ("", 'k=""'),
        ("a: b", 'k="a: b"'),
        ([1, "a"], 'k=[1, "a"]'),
        ({"mlpwi": "device"}, 'k={"mlpwi": "device"}'),
    ],
)
def test_argument(value, text):
    assert argument("k", value) == text


@pytest.mark.parametrize(
    "value", ["${run_name}/x", "a ${b} c", ["${q}"], {"k": "${z}"}, "$HOME", '{"a"}', "é\n#", "", None, True, 0.5]
)
def test_the_reader_that_maxtext_uses_gets_the_value_back(value):
    omegaconf = pytest.importorskip("omegaconf").OmegaConf
    read = omegaconf.from_cli([argument("k", value)])
    assert omegaconf.to_container(read, resolve=True) == {"k": value}


def test_command_line():
    run = RunFolder(Path("/runs/demo"))
    settings = launch(arguments={"override_model_config": True, "ragged_buffer_factor": 1.0})
    keys = maxtext_keys(run, settings, {"ragged_buffer_factor": 1.25})
    assert command("py", settings, run.bundle.maxtext, keys) == [
        "py",
        "-u",
        str(PROGRAM),
        "maxtext.trainers.pre_train.train",
        "/runs/demo/bundle/maxtext.yml",
        "run_name=demo",
        "base_output_directory=/runs/demo/output",
        "jax_cache_dir=/runs/.cache/jax",
        "override_model_config=true",
        "ragged_buffer_factor=1.25",
    ]
    assert maxtext_keys(run, launch(output_directory="gs://b"), {})["base_output_directory"] == "gs://b"


def test_a_key_that_differs_from_run_to_run_tells_no_compile_cache_apart():
    """trainer.py runs alone and names them itself: a new one here would end every hit of te_compile_cache."""
    assert set(maxtext_keys(RunFolder(Path("/runs/demo")), launch(), {})) == set(NOT_COMPILED)


def test_what_trainer_py_may_do_stands_before_the_module():
    words = command("py", launch(workarounds={"te_scan_constants": True}), Path("m.yml"), {})
    assert words[2:] == [
        str(PROGRAM), "--workaround", "te_scan_constants=allowed", "maxtext.trainers.pre_train.train", "m.yml",
    ]  # fmt: skip
    words = command("py", launch(workarounds={"te_scan_constants": False}), Path("m.yml"), {})
    assert words[4] == "te_scan_constants=refused"


def test_ranks_here():
    assert list(ranks_here(launch(), Place("SLURM", 2, 1, "n0", 1))) == [4, 5, 6, 7]


def test_autodetect_needs_slurm():
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "n[0-1]", "NODE_RANK": "9"}
    env = environments(slurm, start="autodetect")[2]
    assert (env["SLURM_NTASKS"], env["SLURM_PROCID"], env["SLURM_LOCALID"]) == ("8", "6", "2")
    assert env["JAX_COORDINATOR_PORT"] == "23456"
    assert not {"NODE_RANK", "NNODES", "JAX_COORDINATOR_IP", "JAX_LOCAL_DEVICE_IDS"} & set(env)
    with pytest.raises(WorkerError, match=r"render with trainer\.start=env"):
        environments({}, start="autodetect")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds a list, wanted an object"),
        ("{", "cannot read"),
        ('{"version": 2}', "version 2, this worker reads version 1"),
        ('{"version": 1, "nodes": 0}', "nodes is 0, wanted a whole number >= 1"),
        ('{"version": 1, "nodes": true}', "nodes is true, wanted a whole number >= 1"),
        ('{"version": 1}', "nodes is nothing, wanted"),
        ('{"version": 1, "nodes": 1, "processes_per_node": 1, "platform": "tpu"}', '"tpu", wanted one of gpu, cpu'),
    ],
)
def test_launch_refusals(tmp_path, text, message):
    path = tmp_path / "launch.json"
    path.write_text(text)
    with pytest.raises(WorkerError) as error:
        read_launch(path)
    assert error.value.code == 78
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("workarounds", "message"),
    [
        ({"te_scan": True}, "workarounds names te_scan, this worker knows te_scan_constants"),
        ({"te_scan_constants": 1}, "te_scan_constants is 1, wanted true or false"),
        ([], "workarounds is [], wanted an object"),
    ],
)
def test_workarounds_that_the_worker_does_not_know_are_refused(tmp_path, workarounds, message):
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({**LAUNCH, "workarounds": workarounds}))
    with pytest.raises(WorkerError) as error:
        read_launch(path)
    assert error.value.code == 78
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "wanted"), [({}, "stop"), ({"overflow": "act"}, "act"), ({"overflow": "stop"}, "stop")]
)
def test_what_an_overflow_leads_to(tmp_path, given, wanted):
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({**LAUNCH, **given}))
    assert read_launch(path).overflow == wanted


@pytest.mark.parametrize("key", WORDS)
def test_every_policys_words_are_read_and_others_refused(tmp_path, key):
    def read(word):
        monitor = {} if key == "overflow" else {"monitor": {key: word}}
        path = tmp_path / "launch.json"
        path.write_text(json.dumps({**LAUNCH, **monitor, **({"overflow": word} if key == "overflow" else {})}))
        launch = read_launch(path)
        return launch.overflow if key == "overflow" else getattr(launch.policy, key)

    for word in WORDS[key]:
        assert read(word) == word
    for word in ("heal", True, None):
        with pytest.raises(WorkerError, match=rf"{key} is .*, wanted one of {', '.join(WORDS[key])}"):
            read(word)


def test_adjustments(tmp_path):
    path = tmp_path / "adjust.json"
    assert read_adjustments(path) == {}
    path.write_text('{"maxtext": {"ragged_buffer_factor": 1.5}, "excluded": ["n3"]}')
    assert read_adjustments(path) == {"ragged_buffer_factor": 1.5}
    path.write_text('{"maxtext": [1]}')
    with pytest.raises(WorkerError, match="wanted an object of MaxText keys"):
        read_adjustments(path)
