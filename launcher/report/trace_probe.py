"""Read one xplane.pb with JAX's own reader: runs as a program of its own, in a Python that has JAX.

    python trace_probe.py TRACE.xplane.pb FOLDER

FOLDER gets answer.json: {"jax": version, "devices": [...], "steps": [number, ...], "hosts": [...]}, or {"missing": text}
without JAX, or {"damaged": text}. A device is {"name", "keys": [[kernel, operation, scopes, detail, stream], ...]}, and its
events lie in <index>.bin: four arrays of equal length, start and end in ns (q), key (q), call (q, -1 = none): kernels of
one execution of an operation have the same call. Plane by plane, so that only one device's events are in memory besides the
file itself. Nothing of the launcher is imported.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from array import array
from pathlib import Path
from typing import Any

GPU = "/device:GPU:"
CPU = "/host:CPU"
STEP = "train"
"""What MaxText calls its step annotation (trainers/pre_train/train.py: StepTraceAnnotation)."""

_NESTED = re.compile(r"^(while|call|conditional)([._\d]|$)")
"""On CPUs these operations last as long as all that they hold; those count."""


class Device:
    """The events of one device, kernels by their index in `keys`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: dict[tuple[str, ...], int] = {}
        self.arrays = tuple(array("q") for _ in range(4))

    def add(self, event: Any, key: tuple[str, ...], call: int) -> None:
        """One kernel or copy."""
        start, end, keys, calls = self.arrays
        start.append(round(event.start_ns))
        end.append(round(event.end_ns))
        keys.append(self.keys.setdefault(key, len(self.keys)))
        calls.append(call)

    def write(self, folder: Path, index: int) -> dict[str, Any]:
        """Its events into a file; what the answer says of it."""
        with (folder / f"{index}.bin").open("wb") as file:
            for each in self.arrays:
                each.tofile(file)
        return {"name": self.name, "keys": [list(key) for key in self.keys]}


def gpu(plane: Any) -> Device:
    """A GPU's plane: a line is a stream."""
    device = Device(plane.name)
    for line in plane.lines:
        stream = str(line.name)
        if not stream.startswith("Stream #"):
            continue
        for event in line.events:
            stats = dict(event.stats)
            op = str(stats.get("hlo_op", ""))
            # A command buffer (CUDA graph) is one call of many operations.
            call = -1 if op.startswith("command_buffer") else int(stats.get("scope_range_id", -1))
            detail = str(stats.get("memcpy_details", "")).partition(" size:")[0]
            device.add(event, (event.name, op, str(stats.get("name", "")), detail, stream), call)
    return device


def cpu(plane: Any) -> list[Device]:
    """The operations that XLA ran on a host's threads, by the device that they stand for."""
    found: dict[int, Device] = {}
    for line in plane.lines:
        thread = str(line.name).partition("/")[0]
        if not thread.startswith("tf_"):
            continue
        for event in line.events:
            name = str(event.name)
            if ":" in name or _NESTED.match(name):
                continue
            stats = dict(event.stats)
            op = stats.get("hlo_op")
            if op is None:
                continue
            number = int(stats.get("device_ordinal", 0))
            device = found.setdefault(number, Device(f"/device:CPU:{number}"))
            device.add(event, (str(op), str(op), "", "", thread), -1)
    return [found[number] for number in sorted(found)]


def steps(plane: Any) -> set[int]:
    """The training steps that began while the profiler ran."""
    return {
        int(number)
        for line in plane.lines
        for event in line.events
        if event.name == STEP
        for name, number in event.stats
        if name == "step_num"
    }


def read(trace: str, folder: Path) -> dict[str, Any]:
    """The answer."""
    try:
        import jax
        from jax.profiler import ProfileData
    except (ImportError, RuntimeError) as error:
        return {"missing": str(error)}
    try:
        data = ProfileData.from_file(trace)
        planes = list(data.planes)
    except Exception as error:  # whatever its reader raises
        return {"damaged": f"{type(error).__name__}: {error}"}
    devices: list[dict[str, Any]] = []
    seen: set[int] = set()
    for plane in planes:
        if plane.name.startswith(GPU):
            devices.append(gpu(plane).write(folder, len(devices)))
        elif plane.name == CPU:
            seen |= steps(plane)
    if not devices:  # a GPU run's host executes operations too
        for plane in planes:
            if plane.name == CPU:
                for device in cpu(plane):
                    devices.append(device.write(folder, len(devices)))
    names = [str(plane.name) for plane in planes]
    return {"jax": jax.__version__, "devices": devices, "steps": sorted(seen), "planes": names}


def main(words: list[str]) -> int:
    """The program."""
    trace, folder = words
    warnings.simplefilter("ignore")
    answer = read(trace, Path(folder))
    (Path(folder) / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
