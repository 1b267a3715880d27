import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from launcher.config.groups import options
from launcher.issue import Refused
from launcher.node.environment import read_env
from launcher.plan.plan import Plan
from launcher.render import experiment
from launcher.render.bundle import NODE, Bundle, read, render, seal, verify, write
from launcher.render.folder import hashes_of, worker_of

ROOT = Path(launcher.__file__).resolve().parent.parent
EXPERIMENTS = options("exp")
RENDER = """
import sys
from pathlib import Path
from launcher.config.compose import Composer
from launcher.plan.plan import make
from launcher.render.bundle import render, write
for name in sys.argv[2:]:
    write(render(make(Composer().compose([f"+exp={name}"]).experiment)), Path(sys.argv[1]) / name)
"""


@pytest.fixture
def bundle(plan_of) -> Bundle:
    return render(plan_of("+exp=dsv3_128gpu"))


def diff(one: Path, other: Path) -> str:
    return subprocess.run(["diff", "-r", str(one), str(other)], capture_output=True, text=True).stdout


def test_the_files_are_those_of_the_contract(bundle: Bundle) -> None:
    ours = {name for name in bundle.files if not name.startswith("node/")}
    assert ours == {
        "experiment.yaml", "maxtext.yml", "env", "xla_flags", "launch.json", "failures.json", "plan.txt", "plan.json", "job.sbatch",
        "manifest.json",
    }  # fmt: skip
    node = {name: data for name, data in bundle.files.items() if name.startswith("node/")}
    assert node == {f"node/{file.name}": file.read_bytes() for file in NODE.glob("*.py")}
    assert bundle.artefact == bundle.files["job.sbatch"].decode()


@pytest.mark.parametrize(("target", "artefact"), [("local", "run.sh"), ("slurm", "job.sbatch")])
def test_a_bundle_has_its_targets_artefact_and_no_other(target: str, artefact: str, plan_of) -> None:
    bundle = render(plan_of("+exp=moe_tiny_cpu", f"target={target}"))
    assert {"run.sh", "job.sbatch"} & set(bundle.files) == {artefact}
    assert bundle.artefact == bundle.files[artefact].decode()


def test_the_manifest_can_be_checked_with_sha256sum(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    write(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["content"] == bundle.content
    names = sorted(
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"
    )
    assert list(manifest["files"]) == names
    listing = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, check=True).stdout
    assert hashlib.sha256(listing).hexdigest() == bundle.content


def test_the_name_says_what_was_asked_and_not_which_launcher_rendered_it(bundle: Bundle, plan_of) -> None:
    def resealed(name: str, data: bytes) -> Bundle:
        files = {**bundle.files, name: data}
        del files["manifest.json"]
        return seal("dsv3_128gpu", files)

    for name in ("node/worker.py", "node/new.py", "job.sbatch", "failures.json", "plan.txt"):
        newer = resealed(name, b"# of a newer launcher\n")
        assert newer.name == bundle.name
        assert newer.content != bundle.content
        seen = (worker_of(hashes_of(newer.files)) == worker_of(hashes_of(bundle.files)), name)
        assert seen == (name == "plan.txt", name)
    for name in ("env", "xla_flags", "maxtext.yml", "launch.json", "experiment.yaml"):
        assert resealed(name, b"a: 1\n").name != bundle.name
    assert bundle.name.startswith("dsv3_128gpu-")
    assert render(plan_of("+exp=dsv3_128gpu", "trainer.steps=7")).name != bundle.name


def test_a_users_own_failures_come_first_in_the_bundle_and_wrong_ones_are_refused(
    bundle: Bundle, plan_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '[[failure]]\nname = "ours"\nwhere = ["rank"]\npatterns = ["filer-7"]\ncause = "the filer"\naction = "stop"\n'
    monkeypatch.setenv("LAUNCHER_CONF", str(tmp_path))
    (tmp_path / "failures.toml").write_text(row)
    mine = render(plan_of("+exp=dsv3_128gpu"))
    own, theirs = (json.loads(one.files["failures.json"])["failures"] for one in (bundle, mine))
    assert theirs[1:] == own
    assert (theirs[0]["name"], theirs[0]["action"], theirs[0]["kind"]) == ("ours", "stop", "")
    assert mine.name == bundle.name
    (tmp_path / "failures.toml").write_text(row.replace("stop", "dance"))
    with pytest.raises(Refused, match=r"failures\.toml, failure ours: action 'dance' is not known"):
        render(plan_of("+exp=dsv3_128gpu"))


def test_the_same_with_another_worker_is_not_overwritten(bundle: Bundle, tmp_path: Path) -> None:
    files = {name: data for name, data in bundle.files.items() if name != "manifest.json"}
    older = seal("dsv3_128gpu", {**files, "node/worker.py": b"# older\n"})
    write(older, tmp_path / "b")
    with pytest.raises(Refused, match="the same with another version of the worker"):
        write(bundle, tmp_path / "b")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rendering_twice_gives_the_same_folder(name: str, plan_of, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write(render(plan_of(f"+exp={name}")), tmp_path / folder)
    assert diff(tmp_path / "one", tmp_path / "two") == ""
    assert verify(tmp_path / "one") == []


def test_the_order_of_the_words_does_not_matter(plan_of) -> None:
    words = [
        "trainer.steps=7",
        "+env.vars.A=1",
        "+env.vars.B=2",
        "+xla.flags.xla_gpu_enable_cublaslt=true",
        "+maxtext.adam_b1=0.8",
        "+maxtext.adam_b2=0.9",
    ]
    assert render(plan_of("+exp=dsv3_128gpu", *words)) == render(plan_of(*reversed(words), "+exp=dsv3_128gpu"))


def test_another_machine_and_day_give_the_same_bytes(tmp_path: Path) -> None:
    """Hash seed, folder, home, zone, language, umask and user name differ; the clock does by itself."""
    (tmp_path / "elsewhere").mkdir()
    here = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    worlds = [
        (ROOT, 0o022, {"PYTHONHASHSEED": "1", "HOME": "/nowhere", "TZ": "UTC", "LANG": "C.UTF-8", "USER": "someone"}),
        (
            tmp_path / "elsewhere",
            0o077,
            {
                "PYTHONHASHSEED": "2",
                "HOME": str(tmp_path),
                "TZ": "Asia/Tokyo",
                "LANG": "C",
                "LC_ALL": "C",
                "USER": "nobody",
                "LOGNAME": "nobody",
                "PYTHONUTF8": "0",
                "COLUMNS": "40",
                "HOSTNAME": "other",
            },
        ),
    ]
    for number, (folder, umask, environ) in enumerate(worlds):
        command = [sys.executable, "-c", RENDER, str(tmp_path / str(number)), *EXPERIMENTS]
        subprocess.run(command, cwd=folder, env={**here, **environ}, check=True, umask=umask)
    assert diff(tmp_path / "0", tmp_path / "1") == ""
    assert sorted(p.name for p in (tmp_path / "0").iterdir()) == EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_path_of_this_machine_is_in_a_bundle(name: str, plan_of) -> None:
    for file, data in render(plan_of(f"+exp={name}")).files.items():
        for word in (str(ROOT), str(Path.home()), os.uname().nodename):
            assert len(word) < 5 or word.encode() not in data, f"{file} holds {word}"


def test_a_plan_with_errors_is_not_rendered(plan_of) -> None:
    plan: Plan = plan_of("+exp=dsv3_128gpu", "mesh.ici.expert=16")
    with pytest.raises(Refused) as refused:
        render(plan)
    assert refused.value.issues == plan.errors
    assert plan.errors


def test_what_was_written_reads_back(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path / "deep" / "er")
    assert read(tmp_path / "deep" / "er") == bundle
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["er"]


def test_an_empty_folder_and_the_same_bundle_are_fine(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    write(bundle, folder)
    before = (folder / "env").stat().st_mtime_ns
    write(bundle, folder)
    assert (folder / "env").stat().st_mtime_ns == before


def test_another_folder_is_never_overwritten(bundle: Bundle, plan_of, tmp_path: Path) -> None:
    other = render(plan_of("+exp=dsv3_128gpu", "trainer.steps=7"))
    write(other, tmp_path / "other")
    write(bundle, tmp_path / "edited")
    (tmp_path / "edited" / "env").write_text("export A=1\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "hollow" / "inner").mkdir(parents=True)
    for name, told in (
        ("other", other.name),
        ("edited", "changed since (env)"),
        ("mine", "thesis.tex"),
        ("file", "is a file"),
        ("hollow", "inner"),
    ):
        before = sorted(str(p) for p in tmp_path.rglob("*"))
        with pytest.raises(Refused) as refused:
            write(bundle, tmp_path / name)
        (issue,) = refused.value.issues
        assert told in issue.message
        assert bundle.name in issue.message
        assert "--out DIR" in issue.hint
        assert "rm " not in issue.hint
        assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_verify_names_every_file_that_is_not_as_it_was_rendered(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path)
    with (tmp_path / "maxtext.yml").open("a") as file:
        file.write("steps: 3\n")
    (tmp_path / "env").unlink()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "deepseek3-671b.yml").write_text("base_emb_dim: 1\n")
    (tmp_path / "node" / "__pycache__").mkdir()
    (tmp_path / "node" / "__pycache__" / "worker.cpython-312.pyc").write_bytes(b"x")
    found = {issue.field: issue.code for issue in verify(tmp_path)}
    assert found == {
        "maxtext.yml": "BUNDLE_FILE_EDITED",
        "env": "BUNDLE_FILE_MISSING",
        "models/deepseek3-671b.yml": "BUNDLE_FILE_EXTRA",
    }
    with pytest.raises(Refused) as refused:
        read(tmp_path)
    assert len(refused.value.issues) == 3


@pytest.mark.parametrize("manifest", [None, "", "[]", '{"files": 3}', '{"content": "0", "files": {}}'])
def test_a_folder_without_a_true_manifest_is_no_bundle(manifest: str | None, bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path)
    (tmp_path / "manifest.json").unlink()
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    assert verify(tmp_path)


def test_a_false_content_hash_is_noticed(bundle: Bundle, tmp_path: Path) -> None:
    write(bundle, tmp_path)
    file = tmp_path / "manifest.json"
    file.write_text(file.read_text().replace(bundle.content, "0" * 64))
    assert [issue.code for issue in verify(tmp_path)] == ["BUNDLE_MANIFEST"]
    assert [issue.code for issue in verify(tmp_path / "nowhere")] == ["BUNDLE_MANIFEST"]


def test_a_write_that_fails_leaves_nothing(bundle: Bundle, tmp_path: Path) -> None:
    broken = Bundle(bundle.name, bundle.content, {**bundle.files, "env/inner": b"a file cannot be a folder too"})
    with pytest.raises(OSError, match="env"):
        write(broken, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("umask", "folder_mode", "script_mode"), [(0o022, 0o755, 0o755), (0o077, 0o700, 0o700)])
def test_the_umask_is_kept_and_the_script_can_be_run(
    umask: int, folder_mode: int, script_mode: int, plan_of, tmp_path: Path
) -> None:
    bundle = render(plan_of("+exp=moe_tiny_cpu"))
    old = os.umask(umask)
    try:
        write(bundle, tmp_path / "b")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == folder_mode
    assert stat.S_IMODE((tmp_path / "b" / "run.sh").stat().st_mode) == script_mode


ODD_VALUES = [
    "it's \"both\"", "a\nb", "\r", "\t", "", " ", "a\u2028b", "\x0b", "\x85", "caf\udce9", "null", "[1, 2]", "{a: 1}", "'quoted'", "$HOME", "\\",
]  # fmt: skip


@pytest.mark.parametrize("where", ["env.vars.X", "xla.flags.xla_dump_to", "maxtext.metrics_file", "description"])
@pytest.mark.parametrize("value", ODD_VALUES, ids=ascii)
def test_an_odd_value_is_rendered_or_refused_with_its_name(where: str, value: str, plan_of, tmp_path: Path) -> None:
    quoted = value if value[:1] in ("[", "{", "n") else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    try:
        bundle = render(plan_of("+exp=dsv3_128gpu", f"{where}={quoted}"))
    except Refused as refused:
        (issue,) = refused.issues
        assert where in issue.field + issue.message or "not valid Unicode" in issue.message
        return
    except AssertionError:
        return  # refused when it was composed
    write(bundle, tmp_path / "b")
    assert experiment.load((tmp_path / "b" / "experiment.yaml").read_text(encoding="utf-8"))
    if where == "env.vars.X":
        assert read_env(tmp_path / "b" / "env")["X"] == str(value)
