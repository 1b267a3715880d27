import json

import pytest

from launcher.config.groups import options
from launcher.issue import Issue, Severity
from launcher.render.issue_text import issue_table, issues_json
from launcher.render.layout import WIDTH
from launcher.render.plan_text import plan_json, plan_text

WRONG = ("+exp=dsv3_128gpu", "mesh.ici.expert=16")
KEYS = [
    "experiment", "description", "ok", "target", "hardware", "model", "mesh", "batch", "numbers", "maxtext", "translations", "xla_flags",
    "env", "secrets", "issues",
]  # fmt: skip


@pytest.mark.parametrize("words", [*((f"+exp={name}",) for name in options("exp")), WRONG], ids=" ".join)
def test_the_text_fits_a_terminal_and_says_all_issues(words: tuple[str, ...], plan_of) -> None:
    plan = plan_of(*words)
    text = plan_text(plan)
    assert text.isascii()
    assert not [line for line in text.splitlines() if len(line) > WIDTH or line != line.rstrip()]
    for issue in plan.issues:
        assert issue.code in text
        assert issue.field in text


def test_the_articles_plan_says_what_an_expert_looks_for(plan_of) -> None:
    text = plan_text(plan_of("+exp=dsv3_128gpu"))
    for line in (
        "  fsdp          8       2      16",
        "  expert        8       1       8",
        "  product      64       2     128",
        "  nodes    32 nodes x 4 GPUs (gb200_nvl72), one process a GPU",
        "  domains  2 NVLink domains x 16 of 18 nodes, 64 GPUs each: ranks 0-63, 64-127",
        "  experts  16 expert groups of 8 consecutive ranks on 2 nodes, each inside one NVLink domain of 64 GPUs",
        "  batch    768 sequences = 3,145,728 tokens a step, 24,576 a GPU; 15 steps = 47,185,920 tokens",
        "  target   slurm: 32 nodes; --segment=16: 2 NVLink domains; 04:00:00 a start, queued again",
        "  xla.pgle=true      -> JAX_ENABLE_PGLE=true",
        "  remat.*=offload    -> moe_mlpwi_0, moe_mlpwi_1",
    ):
        assert line in text.splitlines()


def test_an_impossible_mesh_still_has_a_plan_to_read(plan_of) -> None:
    plan = plan_of(*WRONG)
    text = plan_text(plan)
    assert "asked for 32 nodes x 4 GPUs (gb200_nvl72), ICI fsdp 8 x expert 16, DCN fsdp 2: impossible" in " ".join(
        text.split()
    )
    assert "Issues: " in text
    told = plan_json(plan)
    assert told["ok"] is False
    assert told["mesh"] is None
    assert told["issues"]


@pytest.mark.parametrize("words", [("+exp=dsv3_128gpu",), WRONG], ids=" ".join)
def test_the_json_has_the_same_keys_always(words: tuple[str, ...], plan_of) -> None:
    told = plan_json(plan_of(*words))
    assert list(told) == KEYS
    assert json.loads(json.dumps(told)) == told


def test_issues_are_ordered_and_wrapped_without_cutting_words() -> None:
    long_key = "moe.te_ep_overflow_check_every_n_steps"
    issues = [
        Issue("Z_NOTE", Severity.NOTE, "trainer.steps", "a note"),
        Issue("TE_CHECK", Severity.WARNING, long_key, "seen " * 40 + "end", "type " + long_key + "=20 " * 12),
        Issue("MESH", Severity.ERROR, "mesh.ici", "first"),
    ]
    lines = issue_table(issues)
    assert lines[0] == "Issues: 1 error, 1 warning, 1 note"
    assert [line.split()[0] for line in lines if line[2] not in " s"][:3] == ["error", "warning", "note"]
    assert all(len(line) <= WIDTH for line in lines)
    words = " ".join(lines).split()
    assert words.count("seen") == 40
    assert words.count("->") == 1
    assert [issue["severity"] for issue in issues_json(issues)] == ["error", "warning", "note"]
    assert issue_table([]) == ["No issues."]


def test_a_literal_secret_is_in_no_text_of_the_plan(plan_of) -> None:
    literal = "hf_" + "aB3" * 12
    plan = plan_of(
        "+exp=dsv3_128gpu",
        f"+env.vars.HF_TOKEN={literal}",
        f"+maxtext.hf_access_token={literal}",
        f"description={literal}",
    )
    assert plan.errors
    assert literal not in plan_text(plan)
    assert literal not in json.dumps(plan_json(plan))
    assert "HF_TOKEN" in plan_text(plan)
