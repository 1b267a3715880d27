"""The test bed is a Slurm that behaves as the launcher's tests assume: each fact that they rest on, proved in seconds."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from awkward import VALUES

from slurm.testbed import processes
from slurm.testbed.cluster import Cluster
from slurm.testbed.settings import VERSIONS, Settings, TestbedError

Start = Callable[..., Cluster]

IMAGE = "ghcr.io#nvidia/jax:maxtext"
IMAGE_FILE = "ghcr.io_nvidia_jax_maxtext"
PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def script(folder: Path, text: str) -> str:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    return str(path)


def wait_for(what: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.05)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_segments_fill_whole_blocks(racks: Cluster, tmp_path: Path) -> None:
    job = racks.submit(
        "-N32", "--segment=16", "-oout", script(tmp_path, "srun sh -c 'echo $SLURM_TOPOLOGY_ADDR'"), cwd=tmp_path
    )
    assert racks.wait_job(job, "COMPLETED", "FAILED") == "COMPLETED"
    addresses = (tmp_path / "out").read_text().split()
    assert Counter(address.partition(".")[0] for address in addresses) == {"rack0": 16, "rack1": 16}


def test_only_asks_where_256_powered_down_nodes_would_run(racks: Cluster, tmp_path: Path) -> None:
    words = ("sbatch", "--test-only", "--partition=cloud", "--segment=16", "--gpus-per-node=4", "--wrap=true")
    told = racks.run(*words, "-N256", cwd=tmp_path).stderr
    assert "to start at" in told
    assert "c[" in told
    refused = racks.run(
        *words, "-N272", cwd=tmp_path, check=False
    )  # 17 segments of 16; the 16 racks of 18 hold one each
    assert refused.returncode != 0
    assert "Requested node configuration is not available" in refused.stderr


@pytest.mark.slow
def test_1024_tasks_stand_in_16_racks(start_cluster: Start, tmp_path: Path) -> None:
    full = start_cluster("slurm-288", nodes=288, racks=16)
    text = "srun sh -c 'echo $SLURM_TOPOLOGY_ADDR'"
    job = full.submit(
        "-N256",
        "--ntasks-per-node=4",
        "--segment=16",
        "--gpus-per-node=4",
        "-oout",
        script(tmp_path, text),
        cwd=tmp_path,
    )
    full.wait_job(job, "COMPLETED", timeout_s=300)
    addresses = (tmp_path / "out").read_text().split()
    assert Counter(address.partition(".")[0] for address in addresses) == {f"rack{k}": 64 for k in range(16)}
    full.stop()


def test_every_task_sees_the_gpus_of_its_node(each_cluster: Cluster, tmp_path: Path) -> None:
    shown = "echo $SLURM_PROCID $SLURM_LOCALID $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS $(hostname)"
    out = each_cluster.run(
        "srun", "-N2", "--ntasks-per-node=4", "--gpus-per-node=4", "sh", "-c", shown, cwd=tmp_path
    ).stdout
    rows = sorted(line.split() for line in out.splitlines())
    assert [row[:2] for row in rows] == [[str(rank), str(rank % 4)] for rank in range(8)]
    assert {tuple(row[2:4]) for row in rows} == {("0,1,2,3", "0,1,2,3")}
    assert [len(set(host)) for host in ([row[4] for row in rows[:4]], [row[4] for row in rows[4:]])] == [1, 1]


def test_a_requeued_job_starts_again_under_its_id(each_cluster: Cluster, tmp_path: Path) -> None:
    text = 'echo "start ${SLURM_RESTART_COUNT:-0} of $SLURM_JOB_ID"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    job = each_cluster.submit("-N2", "--requeue", "--open-mode=append", "-oout", script(tmp_path, text), cwd=tmp_path)
    wait_for(lambda: "start 0" in text_of(tmp_path / "out"))
    each_cluster.run("scontrol", "requeue", job)
    each_cluster.wait_job(job, "PENDING")
    assert each_cluster.job(job, "Reason") == "BeginTime"
    each_cluster.start_soon(job)
    each_cluster.wait_job(job, "COMPLETED")
    assert f"start 1 of {job}" in text_of(tmp_path / "out")
    assert each_cluster.job(job, "Restarts") == "1"


def test_scancel_sends_term_and_then_kill(each_cluster: Cluster, tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.sh"
    stubborn.write_text("trap 'echo TERM >> signals' TERM\necho $$ > pid\nwhile :; do sleep 0.1; done\n")
    job = each_cluster.submit("-N1", "-oout", script(tmp_path, f"srun bash {stubborn}"), cwd=tmp_path)
    wait_for(lambda: text_of(tmp_path / "pid").strip())
    pid = int(text_of(tmp_path / "pid"))
    assert pid in processes.find(each_cluster.folder)
    each_cluster.run("scancel", job)
    wait_for(lambda: "TERM" in text_of(tmp_path / "signals"))
    wait_for(lambda: pid not in processes.find(each_cluster.folder))  # it ignores TERM: only KILL ends it
    assert each_cluster.wait_job(job, "CANCELLED") == "CANCELLED"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_whose_daemon_dies_goes_down_and_its_job_is_requeued(
    start_cluster: Start, version: str, tmp_path: Path
) -> None:
    # Half of the time until a node is down is MessageTimeout, which is too short here for a cluster that does something else.
    hasty = start_cluster(
        "slurm-hasty", version=version, requeue_delay=5, lines=("SlurmdTimeout=3", "MessageTimeout=4")
    )
    text = 'echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"; [ -n "$SLURM_RESTART_COUNT" ] || srun sh -c "echo up; sleep 600"'
    job = hasty.submit("-N2", "--requeue", "--open-mode=append", "-oout", script(tmp_path, text), cwd=tmp_path)
    wait_for(lambda: text_of(tmp_path / "out").count("up") == 2)
    hasty.kill_daemon("n1")
    wait_for(lambda: hasty.states()["n1"] == "down*")
    hasty.wait_job(job, "COMPLETED")
    restarted_on = text_of(tmp_path / "out").partition("start 1 on ")[2].strip()
    assert restarted_on in ("n[0,2]", "n[2-3]")  # n0 may still be completing
    hasty.start_node("n1")
    hasty.wait_ready()
    hasty.stop()


def test_a_crashed_node_has_no_process_left(cluster: Cluster, tmp_path: Path) -> None:
    cluster.submit("-N2", "-oout", script(tmp_path, "srun sh -c 'setsid sleep 600 & echo up; wait'"), cwd=tmp_path)
    wait_for(lambda: text_of(tmp_path / "out").count("up") == 2)
    other = set(processes.find(cluster.folder, "n0"))
    cluster.crash_node("n1")
    assert not list(processes.find(cluster.folder, "n1"))
    assert other <= set(processes.find(cluster.folder, "n0"))


def test_a_job_lives_through_a_stop_of_the_controller(each_cluster: Cluster, tmp_path: Path) -> None:
    text = "srun sh -c 'echo up; while [ ! -e go ]; do sleep 0.1; done; echo done'"
    job = each_cluster.submit("-N2", "-oout", script(tmp_path, text), cwd=tmp_path)
    wait_for(lambda: text_of(tmp_path / "out").count("up") == 2)
    each_cluster.stop_controller()
    assert each_cluster.states() == {}
    assert not list(processes.find(each_cluster.folder, processes.CONTROLLER))
    each_cluster.start_controller()
    assert each_cluster.job(job, "JobState") == "RUNNING"
    (tmp_path / "go").touch()
    assert each_cluster.wait_job(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert text_of(tmp_path / "out").count("done") == 2


def test_a_drained_node_takes_no_job_and_says_why(each_cluster: Cluster, tmp_path: Path) -> None:
    each_cluster.drain("n1", "health: ECC")
    job = each_cluster.submit("-N4", "-oout", "--wrap=true", cwd=tmp_path)
    wait_for(lambda: each_cluster.job(job, "Reason").startswith(("ReqNodeNotAvail", "Nodes_required", "Resources")))
    assert "health: ECC" in each_cluster.run("sinfo", "--list-reasons").stdout
    each_cluster.resume("n1")
    assert each_cluster.wait_job(job, "COMPLETED") == "COMPLETED"


def container_environment(
    cluster: Cluster, folder: Path, *words: str, env: dict[str, str] | None = None
) -> dict[str, str]:
    container = ("srun", "-N1", f"--container-image={IMAGE}", "--no-container-mount-home", *words)
    out = cluster.run(*container, sys.executable, "-c", PRINT_ENVIRONMENT, cwd=folder, env=env).stdout
    return dict(json.loads(out))


def test_values_arrive_unchanged_in_the_container(each_cluster: Cluster, tmp_path: Path) -> None:
    (each_cluster.folder / "images" / IMAGE_FILE).write_text("SPACES=the image's\n")
    seen = container_environment(each_cluster, tmp_path, f"--container-env={','.join(VALUES)}", env=VALUES)
    assert {name: seen.get(name) for name in VALUES} == VALUES


def test_the_image_wins_except_over_names_in_container_env(each_cluster: Cluster, tmp_path: Path) -> None:
    (each_cluster.folder / "images" / IMAGE_FILE).write_text("LOSES=image\nWINS=image\nOWN=image #1, $x\n")
    job = {"LOSES": "job", "WINS": "job", "OTHER": "job", "LANG": "C.UTF-8"}
    seen = container_environment(each_cluster, tmp_path, "--container-env=OTHERS,LOSES", env=job)
    assert [seen.get(name) for name in ("LOSES", "WINS", "OTHER", "OWN", "LANG")] == [
        "job",
        "image",
        "job",
        "image #1, $x",
        None,
    ]


def test_a_container_sees_what_is_mounted_and_writes_where_it_may(each_cluster: Cluster, tmp_path: Path) -> None:
    (each_cluster.folder / "images" / IMAGE_FILE).touch()
    home, shared = tmp_path / "home", each_cluster.folder / "shared"
    for folder in (home, shared):
        folder.mkdir(exist_ok=True)
        (folder / "file").write_text(f"{folder.name}\n")

    def inside(*words: str) -> str:
        container = ("srun", "-N1", f"--container-image={IMAGE}", *words)
        return each_cluster.run(*container, cwd=tmp_path, env={"HOME": str(home)}).stdout

    assert inside(
        "--no-container-mount-home", "sh", "-c", f"pwd; ls {home} {shared} | grep -c file || true"
    ).split() == ["/", "0"]
    assert inside("--container-mount-home", "ls", str(home)) == "file\n"
    mounts = f"--container-mounts={shared}:{home}/in/side:ro,{shared}"
    look = f"pwd; cat file; cat {home}/in/side/file; touch {home}/in/side/new || echo no; touch new; touch /new-file || echo no"
    assert inside(mounts, f"--container-workdir={shared}", "sh", "-c", look).split() == [
        str(shared),
        "shared",
        "shared",
        "no",
        "no",
    ]
    assert (shared / "new").exists()
    probe = Path(f"/var/tmp/slurm-testbed-{os.getpid()}")
    try:
        inside("--container-writable", "touch", str(probe))
        assert probe.exists()
    finally:
        probe.unlink(missing_ok=True)


def test_an_unknown_image_fails_and_enroot_imports_a_known_one(each_cluster: Cluster, tmp_path: Path) -> None:
    missing = each_cluster.run("srun", "-N1", "--container-image=ghcr.io#no/such", "true", cwd=tmp_path, check=False)
    assert missing.returncode != 0
    assert "failed to import docker image" in missing.stderr
    assert each_cluster.run("enroot", "import", "docker://ghcr.io#no/such", cwd=tmp_path, check=False).returncode != 0
    (each_cluster.folder / "images" / IMAGE_FILE).write_text("FROM_IMAGE=yes\n")
    each_cluster.run("enroot", "import", "-o", str(tmp_path / "x.sqsh"), f"docker://{IMAGE}", cwd=tmp_path)
    inside = ("srun", "-N1", f"--container-image={tmp_path}/x.sqsh", "sh", "-c", "echo $FROM_IMAGE")
    assert each_cluster.run(*inside, cwd=tmp_path).stdout == "yes\n"


def test_sacct_answers_submitit_without_accounting(each_cluster: Cluster, tmp_path: Path) -> None:
    job = each_cluster.submit("-N2", "-oout", "--wrap=exit 3", cwd=tmp_path)
    array = each_cluster.submit("-N1", "--array=0-1", "-oout", "--wrap=true", cwd=tmp_path)
    each_cluster.wait_job(job, "FAILED")
    for task in range(2):
        each_cluster.wait_job(f"{array}_{task}", "COMPLETED")
    asked = ("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", job, "-j", array)
    rows = [line.split("|") for line in each_cluster.run(*asked).stdout.splitlines()]
    assert rows[0] == ["JobID", "State", "NodeList"]
    assert sorted(row[:2] for row in rows[1:]) == sorted(
        [[job, "FAILED"], [f"{array}_0", "COMPLETED"], [f"{array}_1", "COMPLETED"]]
    )
    assert each_cluster.run("sacct", "-j", job, check=False).returncode != 0


def test_the_command_line_starts_one_beside_another_and_ends_only_its_own(cluster: Cluster, tmp_path: Path) -> None:
    def testbed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slurm.testbed", *words, "--dir", str(tmp_path / "second")]
        root = Path(__file__).resolve().parents[2]
        return subprocess.run(command, cwd=root, capture_output=True, text=True)

    others = set(processes.find(cluster.folder))
    try:
        started = testbed("start", "--nodes=2", "--gpus=0")
        assert started.returncode == 0, started.stderr
        assert "up in" in started.stdout
        assert "was up" in testbed("start").stdout
        assert testbed("status").stdout.split() == ["idle", "2", "n0", "n1"]
        env = testbed("env").stdout
        asked = subprocess.run(["bash", "-c", f"{env}\nsrun -N2 hostname"], capture_output=True, text=True)
        assert sorted(asked.stdout.split()) == ["n0", "n1"]
        assert testbed("stop").returncode == 0
        assert testbed("status").returncode == 1
    finally:
        assert testbed("clean").returncode == 0
    assert not (tmp_path / "second").exists()
    assert others == set(processes.find(cluster.folder))
    assert cluster.ready()


def test_a_folder_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(TestbedError, match="not removed"):
        Cluster(Settings(tmp_path)).clean()
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 5, "racks": 2}, "do not divide into 2 racks"),
        ({"nodes": 36, "racks": 2, "cloud": 100}, "racks of 18"),
        ({"version": "22.05", "nodes": 4, "racks": 2}, r"no topology/block"),
        ({"version": "23.02"}, r"knows 24\.11, 22\.05"),
    ],
)
def test_impossible_clusters_are_refused(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(TestbedError, match=message):
        Settings(tmp_path, **settings)  # type: ignore[arg-type]
