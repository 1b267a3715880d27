"""Is this node fit to train: GPUs, their errors and links, memory, disk, clock, and a short computation.

    python3 health.py [--gpus N] [--gpu-name H200] [--imex] [--host-bytes N] [--disk DIR] [--python PY] [--no-compute]

Runs alone, with no other file beside it, on any Python from 3.9: as `srun python3 - < health.py`, as a prolog, as an init
container. One line `launcher-health {...}` says everything; the exit code is 0, or 79 (codes.BAD_NODE) for a node that shall
not be used. What cannot be seen (no nvidia-smi, no right to read the kernel's log, no jax) is said, not guessed.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

PREFIX = "launcher-health "
BAD_NODE = 79  # codes.BAD_NODE; this file runs alone
TIMEOUT_S = 30
COMPUTE_TIMEOUT_S = 240

OK, WARN, FAIL = "ok", "warn", "fail"

FIELDS = (
    "index", "uuid", "name", "driver_version", "memory.total", "memory.used", "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total", "remapped_rows.pending", "remapped_rows.failure",
    "clocks_event_reasons.hw_slowdown", "clocks_event_reasons.hw_thermal_slowdown",
    "fabric.state", "fabric.status", "fabric.cliqueId", "fabric.clusterUuid",
)  # fmt: skip
"""What nvidia-smi is asked for (`nvidia-smi --help-query-gpu`; memory in MiB). One that a driver does not know is left out."""

IDLE_MIB = 1024
"""Memory in use above which a GPU is not idle: the driver keeps some hundred MiB for itself."""

HARDWARE_XIDS = {
    48: "double-bit ECC error", 64: "row remapping failed", 74: "NVLink error",
    79: "GPU has fallen off the bus", 95: "uncontained ECC error", 119: "GSP does not answer", 120: "GSP error",
    121: "C2C link error", 140: "unrecovered ECC error", 145: "NVLink error", 149: "NVLink error",
}  # fmt: skip
"""Xids that tell of the hardware and not of a program (NVIDIA, "Xid errors": catalog)."""

SURVIVED_XIDS = {63: "row remapping event", 92: "high rate of single-bit ECC errors", 94: "contained ECC error"}
"""Those after which the GPU works on (the same catalog); a remapping that waits for a reset is asked for by itself."""

FREE_BYTES = 10 * 2**30
"""Disk below which compile caches and logs of a day may not fit (guess)."""

HOST_SHARE = 0.8
"""Of a node's nominal memory that has to be there: firmware and kernel keep some."""

COMPUTE = """
import json, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.local_devices()
gpu = devices[0].platform == "gpu"
n, turns, elements = (8192, 20, 1 << 27) if gpu else (512, 3, 1 << 20)
multiply = jax.jit(lambda a, b: (a @ b) * (1.0 / n))
def timed(run, start):
    value = jax.block_until_ready(run(start)); began = time.perf_counter()
    for _ in range(turns): value = run(value)
    jax.block_until_ready(value)
    return (time.perf_counter() - began) / turns, value
speeds, wrong = [], []
for i, device in enumerate(devices):
    ones = jax.device_put(jnp.ones((n, n), jnp.bfloat16), device)
    seconds, value = timed(lambda a: multiply(a, ones), ones)
    speeds.append(2 * n**3 / seconds / 1e12)
    if not bool((value == 1).all()): wrong.append(i)
answer = {"jax": jax.__version__, "platform": devices[0].platform, "devices": len(devices), "matmul_tflops": min(speeds), "wrong": wrong}
if len(devices) > 1:
    mesh = Mesh(np.array(devices), ("x",))
    where = NamedSharding(mesh, P("x"))
    k = len(devices)
    mean = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "x") * (1.0 / k), mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    ones = jax.device_put(jnp.ones((k * elements,), jnp.bfloat16), where)
    seconds, value = timed(mean, ones)
    answer["all_reduce_gb_s"] = 2 * (k - 1) / k * 2 * elements / seconds / 1e9
    if not bool((value == 1).all()): answer["wrong"].append("all-reduce")
print("\\n" + json.dumps(answer))
"""
"""On each local device a bf16 product of 8192 x 8192 matrices, over all of them an all-reduce of 256 MiB a GPU (bus bandwidth
as nccl-tests counts it); both have 1 as their right answer."""

Finding = Dict[str, str]


def finding(name: str, level: str, seen: str) -> Finding:
    """One thing that was looked at."""
    return {"name": name, "level": level, "seen": seen}


def output(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> Tuple[Optional[str], str]:
    """What a program prints, or None and why not."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except FileNotFoundError:
        return None, f"no {command[0]} here"
    except subprocess.TimeoutExpired:
        return None, f"{command[0]} did not answer within {timeout_s:.0f} s"
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        return None, " ".join(words[-1].split())[:300]
    return done.stdout, ""


def gpu_rows(text: str, fields: Sequence[str]) -> List[Dict[str, str]]:
    """nvidia-smi's csv (noheader, nounits) as one dict a GPU.

    >>> gpu_rows("0, GPU-1, NVIDIA H200", ["index", "uuid", "name"])[0]["name"]
    'NVIDIA H200'
    """
    return [dict(zip(fields, (part.strip() for part in line.split(",")))) for line in text.splitlines() if line.strip()]


def ask_gpus() -> Tuple[Optional[List[Dict[str, str]]], str]:
    """Every GPU's fields, or None and why not. A field that this driver does not know is asked for no more."""
    fields = list(FIELDS)
    while fields:
        text, why = output(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        if text is not None:
            return gpu_rows(text, fields), ""
        unknown = re.search(r'Field "([^"]+)" is not a valid field', why)
        if unknown is None or unknown[1] not in fields:
            return None, why
        fields.remove(unknown[1])
    return None, "nvidia-smi knows none of the fields"


def unasked(wanted: int, why: str, devices: str = "/dev") -> Finding:
    """nvidia-smi gave no answer. An image may lack the tool; without the driver's device no GPU can be used."""
    if not wanted:
        return finding("GPUs", OK, f"none are wanted ({why})")
    if not why.startswith("no nvidia-smi"):
        return finding("GPUs", FAIL, why)
    if any(os.path.exists(f"{devices}/{name}") for name in ("nvidiactl", "dxg")):  # dxg: the driver under WSL
        return finding("GPUs", WARN, f"not asked, {why}, only its driver")
    return finding("GPUs", FAIL, f"no {devices}/nvidiactl: no driver, or no GPU is given to this container")


def present(rows: Sequence[Dict[str, str]], wanted: int, name: str) -> Finding:
    """As many GPUs as the experiment has a node, and of its kind; more of them are no fault."""
    names = sorted({row.get("name", "?") for row in rows})
    seen = f"{len(rows)} x {', '.join(names) or 'GPU'}"
    other = [each for each in names if name and name.lower() not in each.lower()]
    if wanted < len(rows) and wanted and not other:
        return finding("GPUs", WARN, f"{seen}, of which {wanted} are wanted")
    if other or (wanted and len(rows) < wanted):
        return finding("GPUs", FAIL, f"{seen}, wanted {wanted or len(rows)} x {name or 'GPU'}")
    return finding("GPUs", OK, seen)


def idle(rows: Sequence[Dict[str, str]], programs: str, wanted: int = 0) -> Finding:
    """Nobody else's program is on the GPUs. `programs`: nvidia-smi's compute-apps as csv. Of more GPUs than `wanted`
    (0 = all) it is not known which ones will be used: a warning then.
    """
    taken = WARN if 0 < wanted < len(rows) else FAIL
    running = [line.strip() for line in programs.splitlines() if line.strip()]
    if running:
        return finding("idle", taken, f"{len(running)} programs run on the GPUs: {'; '.join(running)[:300]}")
    full = [
        f"GPU {row['index']}: {row['memory.used']} MiB" for row in rows if _number(row.get("memory.used")) > IDLE_MIB
    ]
    return finding(
        "idle", taken if full else OK, f"memory in use: {', '.join(full)}" if full else "no program, no memory in use"
    )


def _number(text: Optional[str]) -> float:
    """0 for what is no number: nvidia-smi says [N/A] for what a GPU does not have."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def ecc(rows: Sequence[Dict[str, str]]) -> Finding:
    """Uncorrected errors since the driver was loaded, and memory rows that wait for a reset or could not be replaced."""
    bad = []
    for row in rows:
        errors = _number(row.get("ecc.errors.uncorrected.volatile.total"))
        bad += [f"GPU {row['index']}: {errors:.0f} uncorrected errors"] if errors else []
        bad += [f"GPU {row['index']}: rows wait for a reset"] if row.get("remapped_rows.pending") == "Yes" else []
        bad += [f"GPU {row['index']}: a row could not be replaced"] if row.get("remapped_rows.failure") == "Yes" else []
    if bad:
        return finding("ECC", FAIL, "; ".join(bad))
    off = [row["index"] for row in rows if row.get("ecc.mode.current") == "Disabled"]
    return finding("ECC", WARN if off else OK, f"off on GPU {', '.join(off)}" if off else "no uncorrected error")


def throttled(rows: Sequence[Dict[str, str]]) -> Finding:
    """Slowed down by heat or power at rest."""
    slow = [
        f"GPU {row['index']}: {name.rpartition('.')[2]}"
        for row in rows
        for name in ("clocks_event_reasons.hw_slowdown", "clocks_event_reasons.hw_thermal_slowdown")
        if row.get(name) == "Active"
    ]
    return finding("clocks", WARN if slow else OK, "; ".join(slow) or "not slowed down")


def fabric(rows: Sequence[Dict[str, str]]) -> Tuple[Finding, str]:
    """The GPUs have joined NVLink's fabric, all the same domain; the domain is its cluster and clique, "" without one."""
    if not any(row.get("fabric.state") for row in rows):
        return finding("NVLink", WARN, "this driver does not tell of the fabric"), ""
    bad = [
        f"GPU {row['index']}: {row.get('fabric.state')}, {row.get('fabric.status')}"
        for row in rows
        if row.get("fabric.state") not in ("Completed", "N/A", "[N/A]", "Not Supported")
        or row.get("fabric.status") not in ("Success", "N/A", "[N/A]", None)
    ]
    domains = sorted({f"{row.get('fabric.clusterUuid')}.{row.get('fabric.cliqueId')}" for row in rows})
    if bad or len(domains) > 1:
        return finding("NVLink", FAIL, "; ".join(bad) or f"GPUs in several domains: {', '.join(domains)}"), ""
    # A fabric of one node has a UUID of zeros, a GPU without one says N/A.
    within = re.fullmatch(r"[0-]+|\[?N/A\]?", domains[0].partition(".")[0]) is not None
    return finding(
        "NVLink", OK, "joined, of this node alone" if within else f"joined, domain {domains[0]}"
    ), "" if within else domains[0]


def xids(log: str) -> Finding:
    """Errors that the driver wrote into the kernel's log since the start of the machine.

    >>> xids("[9.1] NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.")["level"]
    'fail'
    """
    found = [(place, int(number)) for place, number in re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", log)]
    for level, known in ((FAIL, HARDWARE_XIDS), (WARN, SURVIVED_XIDS)):
        told = sorted({f"Xid {number} at {place} ({known[number]})" for place, number in found if number in known})
        if told:
            return finding("Xid", level, "; ".join(told))
    other = sorted({number for _, number in found})
    return finding("Xid", OK, f"only of programs: {', '.join(map(str, other))}" if other else "none")


def imex(wanted: bool, folder: str = "/dev/nvidia-caps-imex-channels") -> Finding:
    """A channel by which GPUs of several nodes share memory over NVLink."""
    channels = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if channels:
        return finding("IMEX", OK, ", ".join(channels[:4]))
    return finding("IMEX", FAIL if wanted else OK, f"no channel in {folder}" + ("" if wanted else ", none is needed"))


def host_memory(meminfo: str, wanted: int) -> Finding:
    """`wanted`: the node's nominal bytes, 0 = any."""
    sizes = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.M)}
    total, free = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    seen = f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB are free"
    if total < HOST_SHARE * wanted:
        return finding("host memory", FAIL, f"{seen}, wanted {wanted / 2**30:.0f} GiB")
    return finding("host memory", WARN if free < HOST_SHARE * total else OK, seen)


def disk(folders: Iterable[str]) -> Finding:
    """Room where logs, caches and checkpoints go."""
    told, level = [], OK
    for folder in folders:
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            return finding("disk", FAIL, f"{folder}: {error.strerror}")
        told.append(f"{folder}: {free / 2**30:.0f} GiB free")
        level = WARN if free < FREE_BYTES else level
        if not os.access(folder, os.W_OK):
            return finding("disk", FAIL, f"{folder} cannot be written")
    return finding("disk", level, ", ".join(told))


def clock() -> Finding:
    """Whether the kernel holds the clock for synchronized (adjtimex(2): TIME_ERROR = 5 when not)."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return finding("clock", WARN, "the kernel was not asked")
    return finding("clock", WARN if state == 5 else OK, "not synchronized" if state == 5 else "synchronized")


def nccl() -> Finding:
    """The version of the NCCL that a program would load here."""
    try:
        number = ctypes.c_int()
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return finding(
            "NCCL", OK, "no libnccl.so.2 on the loader's path (the trainer's Python or container has its own)"
        )
    return finding("NCCL", OK, f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}")


def compute(python: str) -> Tuple[Finding, Dict[str, float]]:
    """A product and an all-reduce in the trainer's Python; its speeds."""
    text, why = output([python, "-c", COMPUTE], COMPUTE_TIMEOUT_S)
    if text is None:
        absent = "ModuleNotFoundError" in why or why.startswith("no ")
        return finding("compute", WARN if absent else FAIL, f"not measured, {why}" if absent else why), {}
    answer = json.loads(text.strip().splitlines()[-1])
    speeds = {name: float(f"{answer[name]:.4g}") for name in ("matmul_tflops", "all_reduce_gb_s") if name in answer}
    seen = f"{answer['devices']} x {answer['platform']}, jax {answer['jax']}: " + ", ".join(
        f"{n} {v:g}" for n, v in speeds.items()
    )
    if answer["wrong"]:
        return finding("compute", FAIL, f"wrong results: {answer['wrong']}; {seen}"), speeds
    return finding("compute", OK, seen), speeds


def examine(asked: argparse.Namespace) -> Dict[str, Any]:
    """Everything about this node."""
    found, domain, driver = [], "", ""
    rows, why = ask_gpus()
    if rows is None:
        found.append(unasked(asked.gpus, why))
    else:
        programs, _ = output(
            ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader"]
        )
        linked, domain = fabric(rows)
        driver = rows[0].get("driver_version", "") if rows else ""
        found += [
            present(rows, asked.gpus, asked.gpu_name),
            idle(rows, programs or "", asked.gpus),
            ecc(rows),
            throttled(rows),
            linked,
        ]
        log, why = output(["dmesg"])
        found.append(xids(log) if log is not None else finding("Xid", WARN, f"the kernel's log was not read: {why}"))
        found += [finding("driver", OK, driver), imex(asked.imex), nccl()]
    with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
        found.append(host_memory(file.read(), asked.host_bytes))
    found += [disk(asked.disk or ["/tmp"]), clock()]
    speeds: Dict[str, float] = {}
    if not asked.no_compute and all(each["level"] != FAIL for each in found):
        measured, speeds = compute(asked.python)
        found.append(measured)
    node = os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()
    return {"node": node, "findings": found, "speeds": speeds, "domain": domain, "driver": driver, "time": time.time()}


def main(words: Optional[Sequence[str]] = None) -> int:
    """Look, say it in one line, and end with what it means."""
    parser = argparse.ArgumentParser(description="Is this node fit to train?")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that must be here")
    parser.add_argument("--gpu-name", default="", help="a word of their name")
    parser.add_argument("--imex", action="store_true", help="an IMEX channel is needed (NVLink between nodes)")
    parser.add_argument("--host-bytes", type=int, default=0, help="the node's nominal memory")
    parser.add_argument("--disk", action="append", metavar="DIR", help="must be writable and have room (default /tmp)")
    parser.add_argument("--python", default="python3", help="the trainer's Python, for the computation")
    parser.add_argument("--no-compute", action="store_true")
    report = examine(parser.parse_args(words))
    print(PREFIX + json.dumps(report), flush=True)
    return BAD_NODE if any(each["level"] == FAIL for each in report["findings"]) else 0


if __name__ == "__main__":
    sys.exit(main())
