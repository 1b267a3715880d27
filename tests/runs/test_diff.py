"""What differs between two bundles, runs or experiments; a secret's value never does."""

import json

import pytest
from handmade import add_attempt, gone, step_line

from launcher.config.compose import Composer
from launcher.plan.plan import make
from launcher.render.bundle import render
from launcher.render.folder import write
from launcher.runs import store
from launcher.runs.diff import diff, diff_text, flat


def bundle_of(*words, env=None):
    composed = Composer().compose(["+exp=moe_tiny_cpu", *words])
    composed.experiment.env.vars |= env or {}
    return render(make(composed.experiment))


def run_of(folder, bundle, provenance, losses):
    def fill(layout):
        write(bundle, layout.bundle.path)
        layout.provenance.write_text(json.dumps(provenance))

    assert store.create(folder, bundle.name, {"target": "local", "content": bundle.content, "options": {}}, fill)
    run = store.load(folder / bundle.name)
    log = "".join(step_line(step, loss=loss) for step, loss in enumerate(losses))
    add_attempt(run, handle=gone(), log=log, result={"outcome": "finished", "code": 0, "reason": ""})
    return run


def by_key(found):
    return {(d["section"], d["key"]): (d["a"], d["b"]) for d in found["differences"]}


def test_the_same_content_is_said_plainly(tmp_path):
    bundle = bundle_of()
    write(bundle, tmp_path / "written")
    found = diff(bundle, tmp_path / "written")
    assert found == {"same_content": True, "differences": []}
    assert diff_text(found, "left", "right").splitlines()[:3] == [
        "a: left",
        "b: right",
        "same content: the two bundles are the same bytes",
    ]


def test_every_section(tmp_path):
    a = bundle_of(env={"COLOR": "a b", "ONLY_A": "1"})
    b = bundle_of("trainer.steps=40", "+xla.flags.xla_cpu_enable_fast_math=true", env={"COLOR": "it's"})
    found = by_key(diff(a, b))
    assert found["experiment", "trainer.steps"] == ("30", "40")
    assert found["maxtext", "steps"] == ("30", "40")
    assert found["xla", "xla_cpu_enable_fast_math"] == ("(none)", "true")
    assert found["env", "COLOR"] == ("a b", "it's")
    assert found["env", "ONLY_A"] == ("1", "(none)")
    assert not [key for key in found if key[0] in ("files", "versions", "results")]
    text = diff_text(diff(a, b), "a", "b")
    assert "\nmaxtext\n  steps: 30 -> 40\n" in text


def test_a_key_of_the_command_line_is_a_maxtext_key_too():
    found = by_key(diff(bundle_of(), bundle_of("model.overrides.num_experts=4")))
    assert found["maxtext", "num_experts"] == ("8", "4")


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "my_password", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"])
def test_values_of_secret_like_names_are_not_shown(tmp_path, monkeypatch, name):
    # The checks refuse such a literal before this; a bundle from elsewhere may still hold one.
    bundles = [bundle_of(), bundle_of()]
    for number, bundle in enumerate(bundles):
        write(bundle, tmp_path / str(number))
        with open(tmp_path / str(number) / "env", "a") as file:
            file.write(f"export {name}=hunter{number}\n")
        manifest = json.loads(bundle.files["manifest.json"])
        (tmp_path / str(number) / "manifest.json").write_text(json.dumps({**manifest, "content": str(number)}))
    found = diff(tmp_path / "0", tmp_path / "1")
    assert by_key(found) == {("env", name): ("(not shown)", "(not shown)")}
    assert "hunter" not in json.dumps(found)


def test_two_runs_compare_versions_and_results_too(tmp_path):
    a = run_of(tmp_path, bundle_of(), {"time": "1", "packages": {"jax": "0.12.0.1"}, "command": ["x"]}, [7.0, 6.9])
    b = run_of(
        tmp_path,
        bundle_of("trainer.steps=40"),
        {"time": "2", "packages": {"jax": "0.13"}, "command": ["y"]},
        [7.0, 6.0],
    )
    found = by_key(diff(a.folder, b.folder))
    assert found["versions", "packages.jax"] == ("0.12.0.1", "0.13")
    assert found["results", "loss"] == ("6.9", "6.0")
    assert ("versions", "time") not in found


def test_two_runs_compare_where_they_ran(tmp_path):
    a, b = (run_of(tmp_path, bundle_of(f"trainer.steps={steps}"), {}, [7.0]) for steps in (5, 6))
    for run, hosts in ((a, ("rack1-n1", "rack1-n2")), (b, ("rack1-n1", "rack7-n9"))):
        for node, host in enumerate(hosts):
            run.layout.attempt(1).started(node).write_text(json.dumps({"host": host, "started": 1.0}))
    found = by_key(diff(a.layout.path, b.layout.path))
    assert found["placement", "nodes"] == ("rack1-n1, rack1-n2", "rack1-n1, rack7-n9")


def test_what_is_neither_run_nor_bundle_is_refused(tmp_path):
    with pytest.raises(store.RunsError, match="neither a run's folder"):
        diff(tmp_path, bundle_of())


def test_damage_is_told_with_the_file(tmp_path):
    write(bundle_of(), tmp_path / "a")
    (tmp_path / "a" / "manifest.json").write_text("{")
    with pytest.raises(store.Damaged, match=r"manifest\.json"):
        diff(tmp_path / "a", bundle_of())


def test_flat():
    assert flat({"a": {"b": [1, 2], "c": {}}, "d": None}) == {"a.b": [1, 2], "a.c": "{}", "d": None}
