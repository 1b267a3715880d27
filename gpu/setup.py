"""Unpack a bundle on the GPU machine, where there is no network. Standard library only.

    python3 -m gpu.setup PART [PART ...] [--dest DIR]     take parts, in any order and any number of calls
    python3 -m gpu.setup --status                         what is there and what is missing; exit code 1 while it is not whole
    python3 -m gpu.setup --undo                           the image's own libraries back, everything of the bundle gone

When the last part is in: the libraries are unpacked, pip's copies of NCCL and cuBLAS in site-packages become links to them (JAX's
plugin loads those by path, so no search path helps; the originals stay beside them as *.orig), and DIR/env.sh is written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import sys
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu import links, unpack
from gpu.parts import Item, Manifest, NotAPart, digest, manifest_from, read_manifest, read_slices

DEFAULT_DEST = "~/.local/share/gpu-stack"
STATE = "state.json"
INCOMING = "incoming"
OURS = ("site", "lib", "nccl_include", unpack.UNLESS_THERE, INCOMING, "env.sh", STATE)
"""All that is ever written into the destination."""


class Refused(Exception):
    """Nothing was changed; the message says what was seen, what is wanted, and what to type."""


@dataclass
class State:
    """What a destination holds of which bundle."""

    dest: Path
    manifest: Manifest
    done: list[str] = field(default_factory=list)
    """Targets that are unpacked."""

    def save(self) -> None:
        """Write it for the next call."""
        unfinished = self.dest / (STATE + ".tmp")
        text = json.dumps({"bundle": self.manifest.bundle, "manifest": asdict(self.manifest), "done": self.done})
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.dest / STATE)

    @property
    def incoming(self) -> Path:
        """Where slices wait until their file is whole."""
        return self.dest / INCOMING

    def needed(self, piece: str) -> bool:
        """Whether a file that this piece belongs to is still to be made."""
        return any(
            item.target not in self.done for item in self.manifest.items if piece in [p.name for p in item.pieces]
        )

    def missing(self) -> list[int]:
        """The parts, from 1, that hold something that is not here yet."""
        return [
            number
            for number, slices in enumerate(self.manifest.parts, start=1)
            if any(self.needed(each.piece) and not (self.incoming / each.name).exists() for each in slices)
        ]

    @property
    def whole(self) -> bool:
        """Whether every file of the bundle is unpacked."""
        return all(item.target in self.done for item in self.manifest.items)


def load(dest: Path) -> State | None:
    """What an earlier call left in ``dest``."""
    try:
        data = json.loads((dest / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return State(dest, manifest_from(data["manifest"]), data["done"])


def fresh(dest: Path, manifest: Manifest) -> State:
    """The state of an empty destination. Refuses one that holds something under our names: --undo would remove it."""
    if theirs := sorted(name for name in OURS if (dest / name).exists()):
        raise Refused(
            f"{dest} holds {', '.join(theirs)}, and no bundle put that there: name another folder with --dest"
        )
    return State(dest, manifest)


def fits(manifest: Manifest, path: Path) -> None:
    """Refuse a bundle that is for another Python or processor than this one."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (manifest.python, manifest.machine) != (here, platform.machine()):
        raise Refused(
            f"{path} is for Python {manifest.python} on {manifest.machine}, this is Python {here} on {platform.machine()}"
            f" ({sys.executable}): start setup with the Python that trains, or build for it (gpu/versions.toml, [image] python)"
        )


def has_room(state: State, part: int) -> None:
    """Refuse when the file system cannot hold this part and everything that is still to be unpacked."""
    coming = sum(s.size for s in state.manifest.parts[part - 1] if not (state.incoming / s.name).exists())
    # A tree is there twice for a moment, as a tar and as files.
    files = sum(i.size * (1 + i.tree) for i in state.manifest.items if i.target not in state.done)
    free = shutil.disk_usage(state.dest).free
    if coming + files > free:
        raise Refused(
            f"{state.dest} has {free / 1e6:,.0f} MB free, the bundle needs {(coming + files) / 1e6:,.0f} MB there:"
            " make room, or name another folder with --dest"
        )


def take(part_file: Path, dest: Path) -> State:
    """Check one part and keep its slices in the destination; slices that are there already are left alone."""
    manifest, part = read_manifest(part_file)
    fits(manifest, part_file)
    dest.mkdir(parents=True, exist_ok=True)
    state = load(dest) or fresh(dest, manifest)
    if state.manifest.bundle != manifest.bundle:
        raise Refused(
            f"{part_file} belongs to bundle {manifest.bundle}, {dest} holds {state.manifest.bundle}:"
            f" bring all parts of one build, name another folder with --dest, or type first: python3 -m gpu.setup --undo --dest {dest}"
        )
    if part not in state.missing():
        print(f"{part_file.name}: part {part} of {len(manifest.parts)} was taken before")
        return state
    has_room(state, part)
    state.incoming.mkdir(exist_ok=True)
    state.save()
    for each, data in read_slices(part_file, manifest, part):
        kept = state.incoming / each.name
        if kept.exists() or not state.needed(each.piece):
            continue
        unfinished = state.incoming / (each.name + ".tmp")
        with unfinished.open("wb") as file:
            shutil.copyfileobj(data, file, 4 << 20)
        with unfinished.open("rb") as file:
            found = digest(file, each.size)
        if found != each.sha256:
            unfinished.unlink()
            raise NotAPart(
                f"{part_file} (part {part} of {len(manifest.parts)}) is damaged in {each.name}: SHA-256 {found[:12]},"
                f" wanted {each.sha256[:12]}; copy it again"
            )
        unfinished.rename(kept)
    print(f"{part_file.name}: part {part} of {len(manifest.parts)} taken")
    return state


def finish(state: State, site_packages: Path) -> None:
    """Unpack what is whole; when all is, link the libraries and write env.sh."""
    ready = [
        item
        for item in state.manifest.items
        if item.target not in state.done and unpack.is_complete(item, state.manifest, state.incoming)
    ]

    def timed(item: Item) -> float:
        start = time.monotonic()
        unpack.unpack(item, state.manifest, state.incoming, state.dest)
        return time.monotonic() - start

    with ThreadPoolExecutor(len(ready) or 1) as pool:
        for item, seconds in zip(ready, pool.map(timed, ready), strict=True):
            state.done.append(item.target)
            state.save()
            unpack.drop_slices(item, state.incoming)
            print(f"{item.target}: {item.size / 1e6:,.0f} MB in {seconds:.1f} s")
    if not state.whole:
        return
    for package, least in state.manifest.unless_there.items():
        if told := unpack.provide(package, least, state.dest):
            print(told)
    for line in links.replace(state.manifest.links, state.dest, site_packages):
        print(line)
    for line in links.one_cudnn(state.dest, site_packages):
        print(line)
    built_for, here = state.manifest.versions["jaxlib"], unpack.installed("jaxlib", state.dest)
    if here != built_for:
        print(
            f"careful: this Python has {'jaxlib ' + here if here else 'no jaxlib'}, Transformer Engine's binding is compiled"
            f" for {built_for}: python3 -m launcher doctor says what follows"
        )
    (state.dest / "env.sh").write_text(links.environment(state.dest, site_packages), encoding="utf-8")


def tell(state: State) -> int:
    """Say what there is and what is missing; 0 if nothing is."""
    total = len(state.manifest.parts)
    brings = ", ".join(f"{name} {version}" for name, version in state.manifest.versions.items())
    print(f"bundle {state.manifest.bundle} in {state.dest}: {brings}; GPU code for sm_{state.manifest.sm}")
    if missing := state.missing():
        print(
            f"still missing: part {', '.join(map(str, missing))} of {total}; nothing of the image is changed before they are here"
        )
        return 1
    print(f"whole. In each shell: . {shlex.quote(str(state.dest / 'env.sh'))}      then: python3 -m gpu.probe")
    return 0


def undo(dest: Path, site_packages: Path) -> None:
    """Put the image's own libraries back and remove what `setup` wrote into ``dest``, and nothing else there."""
    for line in links.restore(dest, site_packages):
        print(line)
    if load(dest) is None:
        print(f"{dest} holds no bundle: nothing there is removed")
        return
    for name in OURS:
        path = dest / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if dest.is_dir() and not any(dest.iterdir()):
        dest.rmdir()
    print(f"nothing of a bundle is left in {dest}; shells that read its env.sh have to be left")


def main(argv: Sequence[str] | None = None) -> int:
    """0: done, or the parts are in; 1: refused, or with --status not whole."""
    parser = argparse.ArgumentParser(prog="python3 -m gpu.setup", description="Unpack a bundle on the GPU machine.")
    parser.add_argument("parts", nargs="*", type=Path, metavar="PART", help="gpu-stack-*.tar files, in any order")
    parser.add_argument("--dest", type=Path, default=Path(DEFAULT_DEST), help=f"where to unpack ({DEFAULT_DEST})")
    parser.add_argument(
        "--site-packages",
        type=Path,
        default=Path(sysconfig.get_paths()["purelib"]),
        help="where pip put nvidia/ (this Python's: %(default)s)",
    )
    parser.add_argument("--status", action="store_true", help="say what is there and what is missing")
    parser.add_argument("--undo", action="store_true", help="put everything back as it was")
    args = parser.parse_args(argv)
    if not args.parts and not (args.status or args.undo):
        parser.error("name the parts: python3 -m gpu.setup gpu-stack-*.tar")
    dest = Path(os.path.abspath(args.dest.expanduser()))
    try:
        if args.undo:
            undo(dest, args.site_packages)
            return 0
        if args.parts:
            links.may_write(args.site_packages)
        state = load(dest)
        for part in args.parts:
            state = take(part, dest)
        if state is None:
            raise Refused(f"{dest} holds no bundle: python3 -m gpu.setup PART [PART ...] --dest {dest}")
        if args.parts:
            finish(state, args.site_packages)
        told = tell(state)
        return told if args.status else 0
    except (Refused, NotAPart, links.NotWritable, unpack.Damaged, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
