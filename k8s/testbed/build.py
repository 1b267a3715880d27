"""The recipe: builds kube-apiserver 1.20.2 from Debian's source package with Debian's Go, and takes etcd from Debian.

No package of kube-apiserver exists anywhere that a machine behind a package mirror can reach; Debian bookworm ships its source, with
everything it needs vendored, and is frozen. The build takes about 4 CPU minutes, 2 GB of disk while it lasts, and no root; nothing is
installed on the machine itself. What it has to know beyond `go build`:

- the vendored reflect2 1.0.1 faults on Go >= 1.18 (the server dies on its first custom resource); bookworm packages 1.0.2
- pkg/generated/openapi is not in the tarball: openapi-gen, vendored too, writes it from the types
- Kubernetes' makefile wants rsync and containers; `go build` in GOPATH mode does not (`providerless` leaves out the clouds)

A change of this file or of debian.py is a new recipe: install.py builds anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from k8s.testbed.debian import fetch
from k8s.testbed.errors import TestbedError

SUITE = "bookworm"
VERSION = "1.20.2"  # of the Debian source package; the server says so too
GO = "1.19"  # bookworm's
PACKAGES = (f"golang-{GO}-go", f"golang-{GO}-src", "golang-github-modern-go-reflect2-dev", "etcd-server")
TREE = "src/k8s.io/kubernetes"  # in the GOPATH
REFLECT = "github.com/modern-go/reflect2"
OPENAPI = "k8s.io/kube-openapi/cmd/openapi-gen"
# Packages that hold examples of API types rather than the server's own; openapi-gen is not shown them.
NOT_SERVED = tuple(
    f"staging/src/k8s.io/{name}" for name in ("code-generator", "sample-apiserver", "sample-controller", "kube-openapi")
)


def build(work: Path, result: Path) -> None:
    """Fetch, unpack, mend and compile; put kube-apiserver and etcd into `result`."""
    files = fetch(SUITE, work, binary=PACKAGES, source="kubernetes")
    root, tree = work / "root", work / TREE
    root.mkdir()
    tree.mkdir(parents=True)
    for package in (path for path in files if path.suffix == ".deb"):
        _run(["dpkg-deb", "-x", str(package), str(root)])
    tarball = next(path for path in files if ".orig.tar." in path.name)
    _run(["tar", "xf", str(tarball), "--strip-components=1", "-C", str(tree)])
    if not (tree / "cmd/kube-apiserver").is_dir() or VERSION not in tarball.name:
        raise TestbedError(f"{tarball.name} is not the source of Kubernetes {VERSION}: Debian's bookworm has changed")
    _mend(root, tree)
    go = root / f"usr/lib/go-{GO}"
    environment = os.environ | {
        "GOROOT": str(go),
        "GOPATH": str(work),
        "GOCACHE": str(work / "cache"),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
        "PATH": f"{go}/bin:{os.environ.get('PATH', '')}",
    }
    _generate_openapi(work, tree, environment)
    variable = "k8s.io/kubernetes/vendor/k8s.io/component-base/version.git"
    major, minor, _ = VERSION.split(".")
    stamp = f"-X {variable}Version=v{VERSION} -X {variable}Major={major} -X {variable}Minor={minor}"
    words = ["go", "build", "-tags", "providerless", "-ldflags", f"-s -w {stamp}", "-o", f"{result}/kube-apiserver"]
    _run([*words, "./cmd/kube-apiserver"], cwd=tree, env=environment)
    shutil.copy2(root / "usr/bin/etcd", result / "etcd")


def _mend(root: Path, tree: Path) -> None:
    """Replace the vendored reflect2 by the packaged one."""
    vendored = tree / "vendor" / REFLECT
    for path in [*vendored.glob("*.go"), *vendored.glob("*.s")]:
        path.unlink()
    for path in (root / "usr/share/gocode/src" / REFLECT).iterdir():
        if path.suffix in (".go", ".s"):
            shutil.copy2(path, vendored)


def _generate_openapi(work: Path, tree: Path, environment: dict[str, str]) -> None:
    """Write pkg/generated/openapi from every package whose types are marked for it."""
    packages = set()
    for top in ("pkg", "cmd", "staging/src/k8s.io"):
        for path in (tree / top).rglob("*.go"):
            folder = path.parent.relative_to(tree).as_posix()
            if path.name.endswith("_test.go") or folder.startswith(NOT_SERVED):
                continue
            if b"+k8s:openapi-gen=" in path.read_bytes():
                packages.add("k8s.io/kubernetes/" + folder.replace("staging/src/", "vendor/", 1))
    _run(["go", "build", "-o", str(work / "openapi-gen"), f"./vendor/{OPENAPI}"], cwd=tree, env=environment)
    header = tree / "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
    what = ["-i", ",".join(sorted(packages)), "-r", "/dev/null"]
    where = ["-p", "k8s.io/kubernetes/pkg/generated/openapi", "-O", "zz_generated.openapi", "-h", str(header)]
    _run(
        [str(work / "openapi-gen"), "--logtostderr", *what, *where],
        cwd=tree,
        env=environment,
    )


def _run(words: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise TestbedError(f"{' '.join(words)[:160]} ...: exit code {done.returncode}: {said}")
