"""Image, mounts and paths of the container, as pyxis takes them (NVIDIA/pyxis, args.c). Silent where the trainer runs in none."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, note, shown, warning
from launcher.plan.slurm import IMAGE_PATHS

PATHS = (
    "checkpoint.directory", "checkpoint.load_parameters_path", "checkpoint.load_full_state_path",
    "data.dataset_path", "data.grain_train_files", "data.hf_train_files", "data.tokenizer_path",
)  # fmt: skip
"""Fields that may name a file or folder of the cluster's."""

SOURCES = ("tmpfs", "umount")
"""Words that pyxis takes for a mount's source beside a path."""


SQUASHFS = (".sqsh", ".squashfs")

MANY_NODES = 32
"""From here on an image is better imported once: mass imports fail (NVIDIA/pyxis #40, #53, #107; enroot #154 above 64 nodes)."""


def _inside(case: Case) -> bool:
    return case.experiment.target.kind == "slurm" and case.experiment.container.image is not None


def image(case: Case) -> Iterator[Issue]:
    """registry/image:tag or a path to a squashfs file."""
    if not _inside(case):
        return
    seen, field = case.experiment.container.image or "", "container.image"
    if not seen or re.search(r"[\s'\"\\,]", seen):
        message = (
            f"{field}={shown(seen)}: wanted REGISTRY/IMAGE:TAG, or a path to a .sqsh file, without spaces or quotes"
        )
        yield error("CONTAINER_IMAGE", field, message, f"type {field}=REGISTRY/IMAGE:TAG, or container=nvidia_maxtext")
    elif seen.startswith("~") or (seen.endswith(SQUASHFS) and not seen.startswith(IMAGE_PATHS)):
        path = "/" + re.sub(r"^[~./]+", "", seen)
        message = f"{field}={seen}: pyxis would look for an image of that name in a registry; a file's path begins with / or ./"
        yield error("CONTAINER_IMAGE", field, message, f"type {field}=/FOLDER{path}")


def imports(case: Case) -> Iterator[Issue]:
    """Every node imports an image from its registry by itself, at every attempt, unless there is a folder for it."""
    if not _inside(case):
        return
    wanted, nodes, field = case.experiment.container, case.mesh.nodes if case.mesh else 1, "container.import_folder"
    seen, folder = wanted.image or "", wanted.import_folder
    if folder is not None:
        if not folder.startswith("/") or re.search(r"[\s'\"\\,:]", folder):
            message = f"{field}={shown(folder)}, wanted an absolute path without spaces, quotes, commas or colons"
            yield error("CONTAINER_IMPORT_FOLDER", field, message, f"type {field}=null")
        return
    from_registry = re.fullmatch(r"(docker://)?[\w$.@#:/-]+", seen) and not seen.startswith(IMAGE_PATHS)
    if nodes >= MANY_NODES and from_registry:
        message = (
            f"{nodes} nodes would each import {seen} from its registry at every attempt: slow, and mass imports fail"
        )
        hint = f"type {field}=/SHARED/images, a folder that all nodes see: the first job imports it there, once for all"
        yield note("CONTAINER_IMPORT", "container.image", message, hint)


def _mount_refused(mount: str) -> str | None:
    """What is wrong with one mount, None when nothing is."""
    source, colon, rest = mount.partition(":")
    target = rest.partition(":")[0]
    if re.search(r"[,\s'\"\\]", mount):
        return "it has a comma, a space or a quote, which pyxis' list of mounts cannot hold"
    if not colon or not target:
        return "wanted FROM:TO or FROM:TO:FLAGS"
    if not source.startswith("/") and source not in SOURCES:
        return "FROM has to be an absolute path: no shell completes it, and jobs start in another folder"
    return None if target.startswith("/") else "TO has to be an absolute path"


def mounts(case: Case) -> Iterator[Issue]:
    """FROM:TO[:FLAGS] each, and a working folder that is a path."""
    if not _inside(case):
        return
    wanted = case.experiment.container
    right = [mount for mount in wanted.mounts if not _mount_refused(mount)]
    for mount in wanted.mounts:
        why = _mount_refused(mount)
        if why:
            example = mount.partition(":")[0]
            offered = [f"{example}:{example}"] if _mount_refused(f"{example}:{example}") is None else []
            typed = f"type 'container.mounts=[{','.join([*right, *offered])}]'"
            yield error("CONTAINER_MOUNT", "container.mounts", f"container.mounts: {shown(mount)}: {why}", typed)
    if wanted.workdir is not None and (not wanted.workdir.startswith("/") or re.search(r"[\n\r\0]", wanted.workdir)):
        field = "container.workdir"
        yield error(
            "CONTAINER_WORKDIR",
            field,
            f"{field}={shown(wanted.workdir)}, wanted an absolute path",
            f"type {field}=null",
        )


def _folder(path: str) -> str:
    """What to mount for a path that may be a pattern: its folder without wildcards, at most a level above it.

    >>> _folder("/data/c4/*.array_record"), _folder("/ckpt/mine")
    ('/data/c4', '/ckpt/mine')
    """
    fixed = re.split(r"[*?\[{]", path)[0]
    return posixpath.normpath(path) if fixed == path else posixpath.dirname(fixed) or "/"


def paths(case: Case) -> Iterator[Issue]:
    """What is written outside a mount is gone with the container, and what is read there is not found."""
    if not _inside(case):
        return
    wanted = case.experiment.container.mounts
    targets = [posixpath.normpath(mount.split(":")[1]) for mount in wanted if not _mount_refused(mount)]
    for field in PATHS:
        group, _, name = field.partition(".")
        seen = getattr(getattr(case.experiment, group), name)
        if not isinstance(seen, str) or not seen.startswith("/"):
            continue
        folder = _folder(seen)
        if not any(folder == target or folder.startswith(target.rstrip("/") + "/") for target in targets):
            lost = (
                "checkpoints written there are lost with it"
                if field == "checkpoint.directory"
                else "it is looked for in the image"
            )
            message = (
                f"{field}={seen} is below no mount of the container: {lost}, unless your cluster mounts it everywhere"
            )
            typed = ",".join([*wanted, f"{folder}:{folder}"])
            yield warning("CONTAINER_PATH", field, message, f"type 'container.mounts=[{typed}]'")


RULES: tuple[Rule, ...] = (image, imports, mounts, paths)
