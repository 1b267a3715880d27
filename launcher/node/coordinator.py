"""Waiting until the coordinator's name is known.

A pod's DNS record appears after the pod; a follower that asks first gets NXDOMAIN, and MaxText would fail at once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from .codes import Code, WorkerError

_PAUSE = 1.0  # seconds between two look-ups


def wait_for_name(host: str, seconds: float, stopped: Callable[[], bool]) -> bool:
    """True when `host` resolves, False when `stopped` said so first.

    Raises WorkerError BAD_NODE (79) after `seconds`: a name that never resolves is the cluster's fault (DNS, a pod or
    node that did not come up), and another attempt on other nodes may cure it.
    """
    began = time.monotonic()
    while not stopped():
        try:
            socket.getaddrinfo(host, None)
            return True
        except OSError as error:
            waited = time.monotonic() - began
            if waited >= seconds:
                raise WorkerError(
                    Code.BAD_NODE,
                    f"the coordinator's name {host} did not resolve in {waited:.0f} s on {socket.gethostname()} "
                    f"({error}): is node 0 up? look with `getent hosts {host}` there",
                ) from error
        time.sleep(min(_PAUSE, max(0.0, seconds - (time.monotonic() - began))))
    return False
