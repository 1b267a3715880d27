"""What versions.toml says: the image, the libraries and packages that go there, and what the build needs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("versions.toml")


@dataclass(frozen=True)
class Versions:
    """versions.toml. Packages are name -> version."""

    python: str
    """The image's, as 3.12."""
    cuda: str
    sm: int
    """The architecture whose GPU code is kept: 90 is Hopper."""
    transformer_engine: str
    maxtext: str
    maxtext_leave_out: tuple[str, ...]
    """Paths inside the package maxtext that do not travel."""
    image: dict[str, str]
    """What the image holds and stays in use, NCCL and cuBLAS excepted."""
    libraries: dict[str, str]
    """NCCL and cuBLAS, which take the place of the image's."""
    carried: dict[str, str]
    """Packages that the image lacks."""
    unless_there: dict[str, str]
    """Packages that are unpacked only where the machine has none that is at least ``at_least``."""
    at_least: dict[str, str]
    build: dict[str, str]
    """Installed for the build, with dependencies."""
    headers: dict[str, str]
    """Installed for the build, without: the libraries to carry and the headers that the binding includes."""


def read(path: Path = FILE) -> Versions:
    """Read versions.toml; a missing table or key is a KeyError, a package with two carried versions a ValueError."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    image = dict(data["image"]["packages"])
    build = data["build"]
    libraries = {data[name]["package"]: data[name]["version"] for name in ("nccl", "cublas")}
    groups = [
        data["maxtext_imports"]["packages"],
        data["launcher_imports"]["packages"],
        data["unless_there"]["at_least"],
    ]
    names = [normal(name) for group in groups for name in group]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path.name} carries {', '.join(twice)} twice: keep one line of each")
    return Versions(
        python=data["image"]["python"],
        cuda=data["image"]["cuda"],
        sm=data["gpu"]["sm"],
        transformer_engine=data["transformer_engine"]["version"],
        maxtext=data["maxtext"]["version"],
        maxtext_leave_out=tuple(data["maxtext"]["leave_out"]),
        image=image,
        libraries=libraries,
        carried=groups[0] | groups[1],
        unless_there={name: image[name] for name in groups[2]},
        at_least=groups[2],
        build={name: image[name] for name in build["as_in_image"]} | build["packages"],
        headers=libraries | {name: image[name] for name in build["headers_as_in_image"]} | build["headers"],
    )


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it: PyYAML and py_yaml-like spellings fall together."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(packages: dict[str, str]) -> list[str]:
    """Arguments for pip."""
    return [f"{name}=={version}" for name, version in packages.items()]
