"""What can be seen of trainers that make no step: stacks, kernel waits, GPUs, NCCL's view, the kernel's log, last lines.

    python3 evidence.py REQUEST

REQUEST: a JSON file (flight.py writes it) with folder, summary, node, host, at, why, since, seconds, python, ras ("" = NCCL is
not asked) and ranks [{rank, pid, last_step, log}]. Runs alone, on any Python from 3.9, as a process of its own: a look at a
process that hangs in a driver may hang too. Each probe writes a file of its own, which says so when nothing could be seen; the
summary is written at once and again as each probe ends. Only looks: no process is changed, and a debugger's pause is short.
"""

import concurrent.futures
import datetime
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

Request = Dict[str, Any]
Answer = Dict[str, Any]

FIELDS = (
    "index", "power.draw", "enforced.power.limit", "utilization.gpu", "clocks.sm", "clocks.max.sm", "temperature.gpu",
    "memory.used", "clocks_event_reasons.active",
)  # fmt: skip
"""What nvidia-smi is asked for (`nvidia-smi --help-query-gpu`): W, W, %, MHz, MHz, degrees C, MiB, a bit mask."""

TAIL_LINES, TAIL_BYTES = 60, 1 << 16  # of a rank's log
DMESG_LINES = 300
XIDS, TOLD_CHARACTERS = 8, 200  # in the summary, which is a line of a pod's log: cut at 16 KiB
THREADS = 4000  # of one process; JAX has some hundreds
RAS_BYTES, RAS_PORT, RAS_PROTOCOL = 16 << 20, 28028, 2
"""NCCL 2.30's src/ras/client.cc; a verbose report of 512 ranks is longer than 256 KiB (marin #7957)."""
RAS_SECONDS = 15  # that NCCL may wait for other ranks' answers


def run(command: List[str], seconds: float) -> Tuple[str, str]:
    """What a program printed, and why it is not all or nothing."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode("utf-8", "replace"), f"{command[0]}: no answer within {seconds:.0f} s"
    except FileNotFoundError:
        return "", f"no {command[0]} here"
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    text = done.stdout.decode("utf-8", "replace")
    said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return text, f"{command[0]}: {said}" if done.returncode else ""


def read(path: str) -> str:
    """A file of /proc, or why it cannot be read, in brackets."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def short(text: str) -> str:
    """The beginning of a text in plain ASCII: each other character would be six in a line of JSON."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:TOLD_CHARACTERS])


def state_of(status: str) -> str:
    """The letter of `State:` in /proc/PID/status: R runs, S waits, D waits in the kernel and cannot be killed, T is stopped."""
    found = re.search(r"^State:\s+(\S)", status, re.MULTILINE)
    return found[1] if found else "?"


def threads(pid: int) -> Tuple[str, Answer]:
    """Every thread of a process: a line each, and each kernel stack once. The main thread's waiting place and state."""
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError as error:
        return f"/proc/{pid}: {error.strerror}\n", {"state": "gone", "wchan": "", "blocked": 0}
    lines = [read(f"/proc/{pid}/status"), "", "thread state wchan syscall name"]
    stacks: Dict[str, List[str]] = {}
    blocked = 0
    for number in numbers[:THREADS]:
        task = f"/proc/{pid}/task/{number}"
        state, waits = state_of(read(f"{task}/status")), read(f"{task}/wchan")
        lines.append(f"{number} {state} {waits} {read(f'{task}/syscall')} {read(f'{task}/comm')}")
        stacks.setdefault(read(f"{task}/stack"), []).append(str(number))
        blocked += state == "D"
    for stack, whose in stacks.items():
        lines += ["", f"kernel stack of {len(whose)} thread(s), {' '.join(whose[:20])}:", stack]
    main = f"/proc/{pid}"
    short = {"state": state_of(read(f"{main}/status")), "wchan": read(f"{main}/wchan"), "blocked": blocked}
    return "\n".join(lines) + "\n", short


def py_spy(python: str) -> str:
    """The program, or "": on PATH, or beside the trainer's Python, where pip puts it."""
    beside = os.path.join(os.path.dirname(python), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


def top_frame(dump: str) -> str:
    """Where the main thread stands, in py-spy's words: function (file:line).

    >>> top_frame('Thread 7 (idle): "MainThread"\\n    wait (threading.py:355)\\n    main (t.py:1)\\n')
    'wait (threading.py:355)'
    """
    found = re.search(r'^Thread [^\n]*"MainThread"[^\n]*\n +([^\n]+)', dump, re.MULTILINE)
    return found[1].strip() if found else ""


def stack(request: Request, rank: Answer, seconds: float) -> Tuple[str, Answer]:
    """The Python stacks of one rank. py-spy shows no values of variables unless it is asked to."""
    program = py_spy(request["python"])
    if not program:
        return "no py-spy on PATH or beside the trainer's Python: `pip install py-spy` shows Python's stacks here\n", {}
    text, why = run([program, "dump", "--pid", str(rank["pid"])], seconds)
    return text + why + "\n", {"top": short(top_frame(text))}


def last_lines(rank: Answer) -> Tuple[str, Answer]:
    """The end of one rank's log."""
    try:
        with open(rank["log"], "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    except OSError as error:
        return f"{rank['log']}: {error.strerror}\n", {}
    said = [line for line in lines if line.strip()]
    return "\n".join(lines) + "\n", {"said": short(said[-1]) if said else ""}


def number(text: str) -> Optional[float]:
    """nvidia-smi's number, None for [N/A]."""
    try:
        return float(text)
    except ValueError:
        return None


def gpus(seconds: float) -> Tuple[str, List[Answer]]:
    """Every GPU of the node, and nvidia-smi's whole report. A field that this driver does not know is left out."""
    fields, end = list(FIELDS), time.monotonic() + seconds
    while True:
        text, why = run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], end - time.monotonic()
        )
        unknown = re.search(r'Field "([^"]+)" is not a valid field', text + why)
        if unknown is None or unknown[1] not in fields:
            break
        fields.remove(unknown[1])
    if why:
        return why + "\n", []
    found = []
    for line in text.splitlines():
        values = dict(zip(fields, (part.strip() for part in line.split(","))))
        named = {
            name: number(values.get(field, ""))
            for name, field in (
                ("index", "index"), ("watts", "power.draw"), ("limit", "enforced.power.limit"), ("busy", "utilization.gpu"),
                ("mhz", "clocks.sm"), ("most_mhz", "clocks.max.sm"), ("celsius", "temperature.gpu"),
            )
        }  # fmt: skip
        found.append({**named, "reasons": values.get("clocks_event_reasons.active", "")})
    whole, why = run(["nvidia-smi", "-q"], end - time.monotonic())
    return f"{','.join(fields)}\n{text}\n{whole}{why}\n", found


def kernel_log(since: float, seconds: float) -> Tuple[str, List[str]]:
    """The kernel's last words, and those of NVIDIA's driver about faults (Xid) since `since` (Unix seconds)."""
    text, why = run(["dmesg", "--time-format", "iso"], seconds)
    lines = text.splitlines()[-DMESG_LINES:]
    xids = [line for line in lines if "NVRM: Xid" in line and stamp(line) >= since]
    return "\n".join(lines) + f"\n{why}\n", [short(line.partition("NVRM: ")[2]) for line in xids[-XIDS:]]


def stamp(line: str) -> float:
    """The Unix time of a line of `dmesg --time-format iso`; endlessly late for a line without one.

    >>> stamp("1970-01-01T00:01:40,500000+00:00 NVRM: Xid (PCI:0000:01:00): 79")
    100.5
    """
    try:
        return datetime.datetime.fromisoformat(line.split(" ", 1)[0].replace(",", ".")).timestamp()
    except ValueError:
        return float("inf")


def ras(address: str, seconds: float) -> str:
    """What NCCL's own monitor (RAS, NCCL >= 2.24) says of all communicators of the job.

    `address`: NCCL_RAS_ADDR, host:port. Each request is a line and gets a line; the report goes on to the end.
    """
    host, _, port = address.rpartition(":")
    where = (host.strip("[]") or "localhost", int(port) if port.isdigit() else RAS_PORT)
    report, end = b"", time.monotonic() + seconds
    try:
        with (
            socket.create_connection(where, timeout=min(5.0, seconds)) as connection,
            connection.makefile("rb") as answers,
        ):
            for asked in (f"CLIENT PROTOCOL {RAS_PROTOCOL}", f"TIMEOUT {RAS_SECONDS}"):
                connection.sendall(asked.encode() + b"\n")
                report += answers.readline()
            connection.sendall(b"VERBOSE STATUS\n")
            while len(report) < RAS_BYTES and time.monotonic() < end:
                connection.settimeout(max(0.1, end - time.monotonic()))
                piece = answers.read1(1 << 16)
                if not piece:
                    return report.decode("utf-8", "replace")
                report += piece
        why = "cut off: too long, or too slow"
    except (OSError, ValueError) as error:
        why = f"NCCL's RAS at {where[0]}:{where[1]}: {error}"
    return report.decode("utf-8", "replace") + f"\n({why})\n"


class Evidence:
    """What was found so far. The summary is small: it travels where the files do not."""

    def __init__(self, request: Request) -> None:
        self._folder = Path(request["folder"])
        self._path = Path(request["summary"])
        self._lock = threading.Lock()
        self._summary: Answer = {key: request[key] for key in ("node", "host", "at", "why")}
        self._ranks = {
            each["rank"]: {"rank": each["rank"], "pid": each["pid"], "last_step": each["last_step"], "top": ""}
            for each in request["ranks"]
        }
        self._summary.update(ranks=list(self._ranks.values()), gpus=[], xids=[], complete=False)

    def keep(self, name: str, text: str) -> None:
        """Writes one probe's file."""
        try:
            (self._folder / name).write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            print(f"{self._folder / name}: {error.strerror}", file=sys.stderr)

    def of_rank(self, rank: int, found: Answer) -> None:
        """Adds to what is known of a rank."""
        with self._lock:
            self._ranks[rank].update(found)

    def add(self, **found: Any) -> None:
        """Adds to what is known of the node."""
        with self._lock:
            self._summary.update(found)

    def write(self) -> None:
        """Replaces the summary in one step."""
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        with self._lock:
            text = json.dumps(self._summary, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, self._path)


def gather(request: Request) -> None:
    """All of it, the probes side by side; the fast and the most telling first."""
    evidence, end = Evidence(request), time.monotonic() + request["seconds"]
    for rank in request["ranks"]:
        for name, (text, found) in (("threads", threads(rank["pid"])), ("last", last_lines(rank))):
            evidence.keep(f"rank{rank['rank']}.{name}", text)
            evidence.of_rank(rank["rank"], found)
    evidence.write()
    left = end - time.monotonic()

    def of_gpus() -> None:
        text, found = gpus(left)
        evidence.keep("nvidia-smi", text)
        evidence.add(gpus=found)

    def of_kernel() -> None:
        text, found = kernel_log(request["since"], left)
        evidence.keep("dmesg", text)
        evidence.add(xids=found)

    def of_rank(rank: Answer) -> None:
        text, found = stack(request, rank, left)
        evidence.keep(f"rank{rank['rank']}.stack", text)
        evidence.of_rank(rank["rank"], found)

    probes: List[Callable[[], None]] = [of_gpus, of_kernel]
    probes += [lambda rank=rank: of_rank(rank) for rank in request["ranks"]]  # type: ignore[misc]
    if request["ras"]:
        probes.append(lambda: evidence.keep("nccl-ras", ras(request["ras"], left)))
    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        # One that hangs in a driver hides nothing of the others: each is written down as it comes.
        for future in concurrent.futures.as_completed([pool.submit(probe) for probe in probes]):
            try:
                future.result()
                evidence.write()
            except Exception as error:  # one probe's fault must not hide what the others saw
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
    evidence.add(complete=True)
    evidence.write()


if __name__ == "__main__":
    gather(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
