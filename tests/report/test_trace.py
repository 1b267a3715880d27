"""`report --trace`: made events whose answer is known, real profiles from two H200 and from this machine's CPUs, mistakes."""

import importlib.util
import json
import lzma
import random
import re
import shutil
import subprocess
import sys
from array import array
from collections import Counter
from pathlib import Path

import pytest
from handmade import add_attempt, make_run
from test_report import finished, log_of, plan_json

from benchmarks import trace_size
from launcher.issue import Refused
from launcher.report import trace_file
from launcher.report.kinds import COMMUNICATION, COMPUTE, Kind, fabric_of, kind_of, own_table, read_table, table
from launcher.report.trace import Events, Key, Trace, breakdown
from launcher.report.trace_text import trace_json, trace_text

TRACES = Path(__file__).resolve().parents[1] / "data" / "traces"
REPO = Path(__file__).resolve().parents[2]
HAS_JAX = importlib.util.find_spec("jax") is not None
needs_jax = pytest.mark.skipif(not HAS_JAX, reason="no JAX here: a profile is read with its own library")

GEMM, GROUPED = Key("nvjet_sm90_x", stream="Stream #1"), Key("nvjet_sm90_ptrGroup_y", "te.1", stream="Stream #1")
GATHER = Key("ncclDevKernel_AllGather_RING_LL(x)", "all-gather.1", stream="Stream #2")
SEND = Key("ncclDevKernel_SendRecv(x)", "all-to-all.3", stream="Stream #2")
DISPATCH = Key("nccl_ep_jit_ht_dispatch_kernel", "custom-call.1", "jit(f)/while/body/moe/dispatch", stream="Stream #3")
TO_HOST = Key("MemcpyD2H", "copy-start.1", stream="Stream #4")


def made(*events, device="/device:GPU:0"):
    """Events from (key, start in us, end in us[, call])."""
    keys = list(dict.fromkeys(event[0] for event in events))
    columns = [array("q", (round(event[n] * 1000) for event in events)) for n in (1, 2)]
    call = array("q", (event[3] if len(event) > 3 else -1 for event in events))
    return Events(device, keys, *columns, array("q", (keys.index(event[0]) for event in events)), call)


def judged(*devices, steps=(), single=False):
    return breakdown(Trace("made", devices, list(steps)), own_table(), single)


def us(seconds):
    return round(seconds * 1e6, 3)


def test_each_moment_counts_once_and_what_runs_beside_computing_is_not_exposed():
    device = judged(
        made((GEMM, 0, 10), (GATHER, 5, 25), (SEND, 20, 30), (TO_HOST, 22, 40), (GEMM, 35, 36), (GEMM, 49, 50))
    )
    parts = device.devices[0].parts
    assert {kind: us(part.span) for kind, part in parts.items()} == {
        Kind.GEMM: 12,  # 0-10, 35-36, 49-50
        Kind.ALL_TO_ALL: 10,  # 20-30: it comes before the all-gather in Kind
        Kind.ALL_GATHER: 10,  # 10-20
        Kind.COPY_TO_HOST: 9,  # 30-35 and 36-40
        Kind.IDLE: 9,
    }
    assert us(device.devices[0].span) == 50
    assert [us(value) for value in (parts[Kind.ALL_GATHER].kernels, parts[Kind.ALL_GATHER].alone)] == [20, 15]
    assert [us(value) for value in (parts[Kind.COPY_TO_HOST].active, parts[Kind.COPY_TO_HOST].alone)] == [18, 17]
    assert device.devices[0].communication == pytest.approx(30 / 42)  # copies are no kernels


def test_kernels_side_by_side_on_one_stream_count_each_in_the_sum_and_once_in_the_span():
    parts = judged(made((GATHER, 0, 10), (GATHER, 0, 10), (GATHER, 5, 20))).devices[0].parts
    assert [us(value) for value in (parts[Kind.ALL_GATHER].kernels, parts[Kind.ALL_GATHER].active)] == [35, 20]


def test_every_device_has_the_span_of_all():
    first, second = judged(made((GEMM, 0, 10)), made((GEMM, 90, 100), device="/device:GPU:1")).devices
    assert us(first.span) == us(second.span) == 100
    assert us(first.parts[Kind.IDLE].span) == us(second.parts[Kind.IDLE].span) == 90


def test_the_articles_share_can_be_computed():
    device = judged(made((GATHER, 0, 42), (DISPATCH, 0, 42), (GEMM, 0, 16))).devices[0]
    assert device.communication == pytest.approx(0.84)
    assert "communication is 84.0% of the kernels' accumulated time" in trace_text(
        judged(made((GATHER, 0, 84), (GEMM, 0, 16)))
    )


def test_calls_are_from_their_first_kernel_to_their_last():
    calls = [(DISPATCH, 100 * n, 100 * n + 10, n) for n in range(20)] + [
        (DISPATCH, 100 * n + 15, 100 * n + 20 + n, n) for n in range(20)
    ]
    found = judged(made(*calls, (GROUPED, 0, 3), (GROUPED, 5, 6)), steps=(4, 5)).calls
    assert [(each.kind, each.place, each.count, us(each.median), us(each.p95), each.per_step) for each in found] == [
        (Kind.GROUPED_GEMM, "te.1", 2, 2, 3, 1),
        (Kind.DISPATCH, "moe/dispatch", 20, 29.5, 38, 10),
    ]
    assert judged(made((GROUPED, 0, 3))).calls[0].per_step is None


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_any_trace_sum_up_to_its_span_as_a_clock_of_ticks_says(seed):
    draw = random.Random(seed)
    keys = (GEMM, GROUPED, GATHER, SEND, DISPATCH, TO_HOST)
    events = [
        (draw.choice(keys), start, start + draw.randrange(0, 30)) for start in (draw.randrange(300) for _ in range(60))
    ]
    device = judged(made(*events)).devices[0]
    kinds = {key: kind_of(own_table(), key.name, key.op) for key in keys}
    first, last = min(event[1] for event in events), max(event[2] for event in events)
    ticks: Counter = Counter()
    for now in range(first, last):
        running = [kinds[key] for key, start, end in events if start <= now < end]
        ticks[min(running, key=tuple(Kind).index, default=Kind.IDLE)] += 1
    assert {kind: us(part.span) for kind, part in device.parts.items() if part.span} == dict(ticks)


def test_every_row_of_the_table_is_right_about_its_own_example():
    for row in own_table():
        assert row.source, row
        assert kind_of(own_table(), *row.example) is row.kind, row.example
    assert {row.kind for row in own_table()} == set(Kind) - {Kind.OTHER, Kind.IDLE}


NAMES = [
    ("ncclSymkDevKernel_AllGather_LL", "", Kind.ALL_GATHER),
    ("ncclDevKernel_AllReduce_Sum_f32_NVLS", "psum", Kind.ALL_REDUCE),
    ("ncclDevKernel_SendRecv(x)", "collective-permute.3", Kind.SEND_RECV),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(x)", "", Kind.ATTENTION),
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>", "", Kind.ATTENTION),
    ("nccl_ep_jit_ht_scan_kernel", "", Kind.PERMUTE),
    ("_unpermute_kernel", "", Kind.PERMUTE),
    ("nvjet_sm103_qqtst_128x256", "custom-call.3 jit(f)/moe/te_grouped_gemm_v2_ffi", Kind.GROUPED_GEMM),
    ("loop_multiply_fusion", "loop_multiply_fusion jit(f)/grouped_gemm/ragged_dot_general", Kind.OTHER),
    ("all-to-all.4", "all-to-all.4", Kind.ALL_TO_ALL),
    ("wrapped_tanh", "wrapped_tanh", Kind.OTHER),
]


@pytest.mark.parametrize(("name", "op", "kind"), NAMES)
def test_names_are_told_apart(name, op, kind):
    assert kind_of(own_table(), name, op) is kind


def test_the_way_is_told_where_the_name_tells_it():
    assert fabric_of("ncclDevKernel_AllReduce_Sum_f32_NVLS", False) == "NVLink"
    assert fabric_of("MemcpyP2P", False) == "peer memory (NVLink or PCIe)"
    assert fabric_of(GATHER.name, False) == "unknown"
    assert fabric_of(GATHER.name, True) == "within one NVLink domain"


def test_users_rows_come_first_and_wrong_ones_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("LAUNCHER_CONF", str(tmp_path))
    own = tmp_path / "kernels.toml"
    own.write_text("[[kernel]]\nkind = 'quantize'\nkernel = ['^nvjet_mine']\n")
    assert kind_of(table(), "nvjet_mine_1", "") is Kind.QUANTIZE
    assert kind_of(table(), "nvjet_1", "") is Kind.GEMM
    own.write_text("[[kernel]]\nkind = 'magic'\nkernel = ['x']\n[[kernel]]\nkind = 'gemm'\nkernel = ['(']\n")
    with pytest.raises(Refused) as error:
        table()
    assert [issue.code for issue in error.value.issues] == ["KERNEL_TABLE"] * 2
    for text in (
        "x = [",
        "kernel = 3",
        "[[kernel]]\nkind='gemm'",
        "[[kernel]]\nkind='gemm'\nkernel=['a*']",
        "[[kernel]]\nkinds=1",
    ):
        assert read_table(text, "own")[1], text


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The profiles from two H200, unpacked."""
    folder = tmp_path_factory.mktemp("traces")
    for packed in TRACES.glob("*.xz"):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@needs_jax
@pytest.mark.parametrize("name", ["h200x2_lhs", "h200x2_graphs"])
def test_a_profile_of_two_h200(name, real):
    found = breakdown(trace_file.read(real / f"{name}.xplane.pb"), own_table())
    assert [device.name for device in found.devices] == ["/device:GPU:0", "/device:GPU:1"]
    assert found.steps == 2
    for device in found.devices:
        assert sum(part.span for part in device.parts.values()) == pytest.approx(device.span, rel=1e-9)
        calls = {kind: part.calls for kind, part in device.parts.items()}
        # Two steps of three layers, and one of each collective; a gather more for the program with the offload.
        assert {kind: calls[kind] for kind in (*COMPUTE, *COMMUNICATION) if calls.get(kind)} == {
            Kind.GROUPED_GEMM: 6,
            Kind.GEMM: 8,
            Kind.ATTENTION: 6,
            Kind.OTHER: calls[Kind.OTHER],
            Kind.DISPATCH: 6,
            Kind.COMBINE: 6,
            Kind.ALL_TO_ALL: 2 + 3 * 2,
            Kind.ALL_GATHER: 6 + 2 + 2,
            Kind.REDUCE_SCATTER: 2,
            Kind.ALL_REDUCE: 2,
            Kind.SEND_RECV: calls[Kind.SEND_RECV],
        }
        assert 0.7 < device.communication < 0.9
        assert sum(device.fabrics.values()) == pytest.approx(device.kernels(COMMUNICATION))
        known = {name for name, _, _ in device.others}
        assert all(name.startswith(("loop_", "input_", "wrapped_", "copy_")) for name in known), known
    layers = {(kind, 12, 3) for kind in (Kind.GROUPED_GEMM, Kind.DISPATCH, Kind.COMBINE)}
    assert {(each.kind, each.count, each.per_step) for each in found.calls} == layers | {(Kind.ALL_TO_ALL, 4, 1)}


@needs_jax
def test_a_profile_of_transformer_engines_block_on_two_h200(real):
    """Four MoE layers, full rematerialization: a layer's dispatch runs forward, again, and as combine's backward."""
    found = breakdown(trace_file.read(real / "h200x2_te_bf16.xplane.pb"), own_table(), single=True)
    (device,) = found.devices  # rank 0's own GPU; of the other rank's its profile knows the name alone
    assert (device.name, found.steps) == ("/device:GPU:0", 3)
    assert device.span / 3 == pytest.approx(0.2023, rel=1e-3)
    assert sum(part.span for part in device.parts.values()) == pytest.approx(device.span, rel=1e-9)
    calls = {kind: sum(each.count for each in found.calls if each.kind is kind) for kind in Kind}
    layers, steps = 4, 3
    assert calls[Kind.DISPATCH] >= 3 * layers * steps
    assert calls[Kind.COMBINE] == 2 * layers * steps
    assert calls[Kind.GROUPED_GEMM] == 7 * layers * steps
    assert device.parts[Kind.ATTENTION].kernels == pytest.approx(0.131, rel=0.01)
    assert device.communication == pytest.approx(0.167, abs=0.005)
    assert device.fabrics == {"within one NVLink domain": pytest.approx(device.kernels(COMMUNICATION))}


@needs_jax
@pytest.mark.parametrize(("row", "layers", "seconds"), [("te_flash", 4, 0.1505), ("wide_fp8", 3, 0.860)])
def test_a_profiled_step_of_the_h200_runs_takes_as_long_as_the_others(row, layers, seconds, real):
    """And holds what Transformer Engine's block does in a step: a layer's dispatch forward, again, and as combine's backward."""
    found = breakdown(trace_file.read(real / f"h200x2_{row}.xplane.pb"), own_table(), single=True)
    (device,) = found.devices
    assert (device.name, found.steps) == ("/device:GPU:0", 2)
    assert device.span / 2 == pytest.approx(seconds, rel=0.015)
    assert device.parts[Kind.DISPATCH].calls == 3 * layers * 2
    assert sum(each.count for each in found.calls if each.kind is Kind.COMBINE) == 2 * layers * 2
    assert device.parts[Kind.ATTENTION].calls
    assert (Kind.QUANTIZE in device.parts) is (row == "wide_fp8")


@needs_jax
def test_the_profile_of_maxtexts_dropless_path(real):
    """Four MoE layers: ragged_dot and the ragged all-to-all, two there, two back, forward, again and backward."""
    found = breakdown(trace_file.read(real / "h200x2_dropless.xplane.pb"), own_table(), single=True)
    (device,) = found.devices
    assert found.steps == 1
    assert device.span == pytest.approx(4.62, rel=0.01)
    assert device.parts[Kind.GROUPED_GEMM].calls == 12 * 4
    ragged = [
        each for each in found.calls if each.kind is Kind.ALL_TO_ALL and each.place.startswith("ragged-all-to-all")
    ]
    assert sum(each.count for each in ragged) == 6 * 4
    assert not {Kind.DISPATCH, Kind.COMBINE, Kind.ATTENTION} & set(device.parts)


@needs_jax
def test_the_same_sums_as_a_plain_look_at_the_file(real):
    script = """
import sys, json, warnings
warnings.simplefilter("ignore")
from jax.profiler import ProfileData
found = {}
for plane in ProfileData.from_file(sys.argv[1]).planes:
    if plane.name.startswith("/device:GPU"):
        found[plane.name] = [sum(e.duration_ns for l in plane.lines for e in l.events if word in e.name) for word in ("AllGather", "sdpa")]
print(json.dumps(found))
"""
    path = real / "h200x2_lhs.xplane.pb"
    told = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    seen = {name: [value / 1e9 for value in values] for name, values in json.loads(told.stdout).items()}
    for device in breakdown(trace_file.read(path), own_table()).devices:
        got = [device.parts[kind].kernels for kind in (Kind.ALL_GATHER, Kind.ATTENTION)]
        assert got == pytest.approx(seen[device.name], rel=1e-9)


@pytest.fixture
def run(tmp_path):
    made_run = make_run(tmp_path, "traced-0000000a", steps=30)
    (made_run.layout.bundle.path / "plan.json").write_text(json.dumps(plan_json()))
    add_attempt(made_run, log=log_of(range(30)), result=finished(29))
    return made_run


@needs_jax
def test_report_finds_the_newest_profile_of_the_run(run, real, command, tmp_path):
    folder = run.layout.output / run.name / "tensorboard" / "plugins" / "profile"
    for name, trace in (("2026_01_01", "h200x2_graphs"), ("2026_01_02", "h200x2_lhs")):
        (folder / name).mkdir(parents=True)
        shutil.copy(real / f"{trace}.xplane.pb", folder / name / "node1.xplane.pb")
    code, out, err = command("report", "traced", "--trace", "--html", str(tmp_path / "page.html"))
    assert code == 0, err
    assert "2026_01_02/node1.xplane.pb: 2 device(s), 2 training steps" in out
    assert "goodput" in out
    assert "Where the profiled time went" in (tmp_path / "page.html").read_text()
    again = (tmp_path / "page.html").read_bytes()
    assert command("report", "traced", "--trace", "--html", str(tmp_path / "page.html"))[1] == out
    assert (tmp_path / "page.html").read_bytes() == again
    _, out, _ = command("report", "traced", "--json", "--trace", str(real / "h200x2_graphs.xplane.pb"))
    told = json.loads(out)["trace"]
    assert told["steps"] == 2
    device = told["devices"][0]
    assert sum(part["span_s"] for part in device["kinds"].values()) == pytest.approx(device["span_s"])
    assert "trace" not in json.loads(command("report", "traced", "--json")[1])


def test_mistakes_are_told(run, command, tmp_path):
    wrong = tmp_path / "wrong.xplane.pb"
    wrong.write_bytes(b"no profile")
    assert "submit it with monitor.profiler=xplane" in command("report", "traced", "--trace")[2]
    assert "is not there" in command("report", "traced", "--trace", str(tmp_path / "x.xplane.pb"))[2]
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    found = command("report", "traced", "--trace", str(wrong), "--python", str(bare))
    assert (found[0], "name a Python that has it: --python" in found[2]) == (1, True), found
    assert "does not start" in command("report", "traced", "--trace", str(wrong), "--python", "/no/python")[2]
    if HAS_JAX:
        assert "is no profile that JAX can read" in command("report", "traced", "--trace", str(wrong))[2]
        wrong.write_bytes(b"")
        assert "holds no kernel" in command("report", "traced", "--trace", str(wrong))[2]


@needs_jax
def test_a_profile_of_this_machines_cpus(tmp_path):
    program = REPO / "benchmarks" / "trace_program.py"
    words = [sys.executable, str(program), str(tmp_path), "--size", "64"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    subprocess.run(words, env=environment, check=True, capture_output=True)
    found = breakdown(trace_file.read(next(tmp_path.rglob("*.xplane.pb"))), own_table())
    assert [device.name for device in found.devices] == ["/device:CPU:0", "/device:CPU:1"]
    assert found.steps == 2
    for device in found.devices:
        assert sum(part.span for part in device.parts.values()) == pytest.approx(device.span)
        assert {Kind.GEMM, Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER} <= set(device.parts)
    json.dumps(trace_json(found))


@needs_jax
@pytest.mark.slow
def test_a_profile_of_a_gigabyte_is_read_within_the_machines_memory(capsys):
    assert trace_size.main(["--megabytes", "1000"]) == 0
    told = capsys.readouterr().out
    made, kernels = (int(re.search(rf"([\d,]+) {word}", told)[1].replace(",", "")) for word in ("events", "kernels"))
    assert made == kernels > 5_000_000
    assert float(re.search(r"with ([\d.]+) GB, broken", told)[1]) < 12
    assert float(re.search(r"span within (\S+)", told)[1]) < 0.01


@needs_jax
def test_a_made_profile_is_read_as_a_real_one(capsys, monkeypatch):
    monkeypatch.setattr(trace_size, "CHUNK", 800)
    assert trace_size.main(["--megabytes", "1"]) == 0
    assert "8 devices, 12,800 kernels" in capsys.readouterr().out


@needs_jax
@pytest.mark.maxtext
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed: pip install '.[local]'"
)
def test_a_profile_of_maxtext_itself(command):
    words = ["+exp=moe_tiny_cpu", "monitor.profiler=xplane", "trainer.steps=8"]
    words += ["monitor.skip_first_n_steps_for_profiler=4", "monitor.profiler_steps=2"]
    code, _, err = command(*words)
    assert code == 0, err
    code, out, err = command("report", "moe_tiny_cpu", "--trace", "--json")
    assert code == 0, err
    found = json.loads(out)["trace"]
    assert found["steps"] == 2
    for device in found["devices"]:
        assert sum(part["span_s"] for part in device["kinds"].values()) == pytest.approx(device["span_s"])
        assert {"gemm", "all_to_all", "all_gather"} & set(device["kinds"]) > {"gemm"}
