"""Makes the keys and certificates of a test bed with openssl: a CA, the server's certificate, clients' certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

from k8s.testbed.errors import TestbedError

DAYS = "365"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make(folder: Path) -> None:
    """Write ca.{crt,key}, server.{crt,key} (for localhost), admin.{crt,key} (of system:masters) and sa.{key,pub}; keep them if there."""
    if (folder / "sa.pub").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _openssl(folder, "req", "-x509", *CURVE, "-days", DAYS, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    (folder / "localhost").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1", encoding="utf-8")
    _certificate(folder, "server", "/CN=localhost", "-extfile", "localhost")
    client(folder, "admin", "system:masters")
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
    _openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def client(folder: Path, user: str, group: str) -> None:
    """Write USER.{crt,key}: a client certificate of that user in that group."""
    _certificate(folder, user, f"/O={group}/CN={user}")


def _certificate(folder: Path, name: str, subject: str, *extra: str) -> None:
    _openssl(folder, "req", *CURVE, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    signed_by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", DAYS)
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed_by, *extra, "-out", f"{name}.crt")


def _openssl(folder: Path, *words: str) -> None:
    done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise TestbedError(f"openssl {' '.join(words[:6])} ...: {done.stderr.strip()[-300:]}")
