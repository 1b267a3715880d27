"""Try a bundle as the GPU machine would, on this machine's CPU: set up, import, train, launch, undo.

    python3.12 -m gpu.check [build/gpu-parts] [--work DIR]

Needs what `build` needs. It cannot show that the GPU code is right; `probe` on the GPU machine does.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpu.stages import IN_WHEELS, ROOT
from gpu.versions import pins, read
from gpu.work import Failed

STEPS = 3
# MaxText's smallest DeepSeek on synthetic data.
TRAIN = (
    "model_name=deepseek3-tiny override_model_config=true hardware=cpu base_num_decoder_layers=4 dataset_type=synthetic"
    f" steps={STEPS} per_device_batch_size=1 max_target_length=128 enable_checkpointing=false run_name=check"
    " skip_jax_distributed_system=true"
)
# libnccl_ep is linked with the driver, which a machine without a GPU lacks: empty functions do for loading it.
LOADS_NCCL_EP = """
import ctypes, sys, transformer_engine.jax
print(ctypes.CDLL(sys.argv[1], 2).ncclEpCreateGroup)
"""


def run(*words: str | Path, environ: dict[str, str] | None = None, cwd: Path = ROOT, keep: int = 15) -> str:
    """What a program printed; Failed with its last ``keep`` lines if it ended with another code than 0."""
    command = [str(word) for word in words]
    done = subprocess.run(command, env=environ, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        told = "\n".join(done.stdout.splitlines()[-keep:])
        raise Failed(f"exit code {done.returncode} of: {' '.join(command)[:300]}\n{told}")
    return done.stdout


def environment(dest: Path) -> dict[str, str]:
    """This process's variables after `. env.sh`, on the CPU."""
    text = run("sh", "-c", f'. "{dest}/env.sh" && env -0')
    pairs = (entry.partition("=") for entry in text.split("\0") if entry)
    return {name: value for name, _, value in pairs} | {"JAX_PLATFORMS": "cpu"}


def driver(folder: Path, library: Path) -> None:
    """A libcuda.so.1 in ``folder`` with an empty function for each that ``library`` calls."""
    folder.mkdir()
    symbols = re.findall(r" U (cu[A-Z]\w*)", run("nm", "-D", "--undefined-only", library))
    source = "\n".join(f"int {name}(void) {{ return 999; }}" for name in symbols)
    (folder / "driver.c").write_text(source)
    run("gcc", "-shared", "-fPIC", folder / "driver.c", "-o", folder / "libcuda.so.1")


def check(parts: list[Path], work: Path) -> None:
    """All steps; Failed at the first that does not work."""
    start = time.monotonic()

    def say(what: str) -> None:
        nonlocal start
        print(f"== {what}: {time.monotonic() - start:.0f} s", flush=True)
        start = time.monotonic()

    versions = read()
    dest, python = work / "stack", work / "venv/bin/python"
    site = work / f"venv/lib/python{versions.python}/site-packages"
    run(sys.executable, "-m", "venv", work / "venv")
    run(python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", *pins(versions.image))
    before = {name: _digest(site / name) for name in IN_WHEELS.values()}
    say("the image's packages")

    for part in reversed(parts):
        print(run(python, "-m", "gpu.setup", part, "--dest", dest), end="")
    say("setup")

    environ = environment(dest)
    print(run(python, "-m", "gpu.probe", environ=environ | {"LD_BIND_NOW": "1"}), end="")
    nccl_ep = dest / "site/transformer_engine/wheel_lib/libnccl_ep.so"
    driver(work / "driver", nccl_ep)
    with_driver = environ | {"LD_LIBRARY_PATH": f"{work / 'driver'}:{environ['LD_LIBRARY_PATH']}"}
    run(python, "-c", LOADS_NCCL_EP, nccl_ep, environ=with_driver)
    say("Transformer Engine and NCCL EP are loaded, every symbol resolved")

    config = dest / "site/maxtext/configs/base.yml"
    train: tuple[str | Path, ...] = (
        "-m",
        "maxtext.trainers.pre_train.train",
        config,
        *TRAIN.split(),
        f"base_output_directory={work / 'out'}",
    )
    _trained(run(python, *train, environ=environ, cwd=dest / "site"))
    say(f"MaxText by hand: {STEPS} steps")

    runs = {"LAUNCHER_RUNS": str(work / "runs")}
    words = ("+exp=moe_tiny_cpu", f"trainer.steps={STEPS}", "checkpoint=none", "name=check")
    run(python, "-m", "launcher", "submit", *words, environ=environ | runs)
    _trained(run(python, "-m", "launcher", "logs", "check", "--rank", "0", environ=environ | runs))
    say(f"MaxText by the launcher: {STEPS} steps")

    run(python, "-m", "gpu.setup", "--undo", "--dest", dest)
    after = {name: _digest(site / name) for name in IN_WHEELS.values()}
    if after != before or dest.exists():
        raise Failed(f"--undo left something: {dest} or libraries in {site}")
    say("undo: the image is as it was")


def _trained(log: str) -> None:
    steps = log.count("completed step")
    if steps != STEPS:
        raise Failed(f"{steps} completed steps, wanted {STEPS}:\n" + "\n".join(log.splitlines()[-15:]))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything works; 1: something does not."""
    parser = argparse.ArgumentParser(prog="python3 -m gpu.check", description="Try a bundle on the CPU.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("build/gpu-parts"), help="of the parts (%(default)s)"
    )
    parser.add_argument("--work", type=Path, help="an empty folder to work in, 5 GB (a temporary one, removed)")
    args = parser.parse_args(argv)
    parts = sorted(path.resolve() for path in args.folder.glob("gpu-stack-*.tar"))
    try:
        if not parts:
            raise Failed(f"{args.folder} has no gpu-stack-*.tar: python3 -m gpu.build --out {args.folder}")
        if args.work:
            args.work.mkdir(parents=True)
            check(parts, args.work.resolve())
        else:
            with tempfile.TemporaryDirectory() as folder:
                check(parts, Path(folder))
    except (Failed, OSError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
