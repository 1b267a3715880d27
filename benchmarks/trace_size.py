"""What reading a large profile takes: makes one of GPUs from nothing and breaks it down.

    python -m benchmarks.trace_size [--megabytes 1000] [--python PYTHON]

Prints the file's size and events, seconds, and the peak memory of the reading process and of this one. The made profile has
what a real one has: eight devices, streams, an operation with its scopes at each kernel.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launcher.report import kinds, trace, trace_file

DEVICES, STREAMS, CHUNK = 8, 4, 20_000
NAMES = ("nvjet_sm90_x", "ncclDevKernel_AllGather_RING_LL(x)", "nccl_ep_jit_ht_dispatch_kernel", "loop_add_fusion")
WRITE = """
import sys, json
from jax.profiler import ProfileData
for line in sys.stdin:
    asked = json.loads(line)
    with open(asked["text"]) as file: made = ProfileData.text_proto_to_serialized_xspace(file.read())
    with open(asked["out"], "wb") as file: file.write(made)
    print("done", flush=True)
"""
"""JAX's own writer, in a process of its own: text in, a serialized profile out."""


def plane(device: int, first: int) -> str:
    """One device's plane in protobuf's text format, with CHUNK events that begin at `first` ns."""
    names = "".join(
        f'event_metadata {{ key: {n + 1} value {{ id: {n + 1} name: "{name}" }} }}\\n' for n, name in enumerate(NAMES)
    ).replace("\\n", "\n")
    stats = ("correlation_id", "scope_range_id", "hlo_op", "name", "hlo_module", "program_id", "kernel_details")
    words = "".join(
        f'stat_metadata {{ key: {n + 1} value {{ id: {n + 1} name: "{s}" }} }}\n' for n, s in enumerate(stats)
    )
    refs = "".join(
        f'stat_metadata {{ key: {20 + n} value {{ id: {20 + n} name: "jit(train_step)/while/body/op.{n}" }} }}\n'
        for n in range(len(NAMES))
    )
    lines = []
    for stream in range(STREAMS):
        events = "".join(
            f"events {{ metadata_id: {n % len(NAMES) + 1} offset_ps: {n * 20_000_000} duration_ps: 19000000 "
            f"stats {{ metadata_id: 1 uint64_value: {n} }} stats {{ metadata_id: 2 uint64_value: {first + n} }} "
            f"stats {{ metadata_id: 3 ref_value: {20 + n % len(NAMES)} }} stats {{ metadata_id: 4 ref_value: {20 + n % len(NAMES)} }} "
            f"stats {{ metadata_id: 5 ref_value: 20 }} stats {{ metadata_id: 6 uint64_value: 4645 }} "
            f'stats {{ metadata_id: 7 str_value: "regs:96 static_shared:21568 grid:24,1,1 block:512,1,1" }} }}\n'
            for n in range(CHUNK // STREAMS)
        )
        lines.append(
            f'lines {{ id: {stream} name: "Stream #{stream}(Compute)" timestamp_ns: {first + stream * 5000} {events} }}\n'
        )
    return f'planes {{ id: {device} name: "/device:GPU:{device}" {names}{words}{refs}{"".join(lines)} }}'


def body(serialized: bytes) -> bytes:
    """A profile of one plane without the frame round the plane: field 1, a length, and the rest."""
    at = 1
    while serialized[at] & 0x80:
        at += 1
    return serialized[at + 1 :]


def framed(length: int) -> bytes:
    """The frame of a plane so long."""
    out = bytearray(b"\x0a")
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(out) + bytes([length])


def make(path: Path, megabytes: int, python: str) -> int:
    """Write a profile of about so many MB; how many events it has. Bodies of one plane laid end to end are one plane."""
    events = 0
    with tempfile.TemporaryDirectory() as name, path.open("wb") as file:
        text, out = Path(name) / "text", Path(name) / "out"
        writer = subprocess.Popen([python, "-W", "ignore", "-c", WRITE], stdin=-1, stdout=-1, text=True)
        assert writer.stdin is not None
        assert writer.stdout is not None
        for device in range(DEVICES):
            parts = Path(name) / "parts"
            with parts.open("wb") as joined:
                chunk = 0
                while joined.tell() < megabytes * 1_000_000 / DEVICES:
                    text.write_text(plane(device, chunk * CHUNK // STREAMS * 20_000))
                    writer.stdin.write(json.dumps({"text": str(text), "out": str(out)}) + "\n")
                    writer.stdin.flush()
                    if writer.stdout.readline() != "done\n":
                        raise SystemExit("the writer died")
                    joined.write(body(out.read_bytes()))
                    events, chunk = events + CHUNK, chunk + 1
            file.write(framed(parts.stat().st_size))
            with parts.open("rb") as done:
                while block := done.read(1 << 24):
                    file.write(block)
        writer.stdin.close()
        writer.wait()
    return events


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--python", default=sys.executable, help="with JAX")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "made.xplane.pb"
        events = make(path, options.megabytes, options.python)
        print(f"made {path.stat().st_size / 1e6:,.0f} MB, {events:,} events", flush=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        started = time.monotonic()
        read = trace_file.read(path, options.python)
        middle = time.monotonic()
        found = trace.breakdown(read, kinds.own_table())
        ended = time.monotonic()
    child, own = (resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
    largest = f"at most {child:.1f} GB" if child * 1e6 == before else f"{child:.1f} GB"
    print(f"read in {middle - started:.0f} s with {largest}, broken down in {ended - middle:.0f} s with {own:.1f} GB")
    off = max(abs(sum(part.span for part in one.parts.values()) / one.span - 1) for one in found.devices)
    print(
        f"{len(found.devices)} devices, {sum(part.calls for one in found.devices for part in one.parts.values()):,} kernels"
    )
    print(f"the kinds sum up to the span within {off:.1e}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
