"""A trainer that says where it is: `python -m placement_trainer maxtext.yml KEY=VALUE ...`.

Every process writes <output>/seen/<rank>.json, then calls the coordinator by the address that it was given, as
jax.distributed.initialize does: rank 0 listens there and notes who has called. Then it says what MaxText says at its end.
"""

import json
import os
import re
import socket
import sys
import time
from pathlib import Path

LIMIT_S = 240


def call(address, rank):
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with socket.create_connection(address, timeout=LIMIT_S) as connection:
                connection.sendall(rank.to_bytes(4, "big"))
                assert connection.recv(1) == b"!"
                return
        except OSError:
            assert time.monotonic() < deadline, f"nobody answers at {address}"
            time.sleep(0.2)


def listen(port, processes):
    """Waits for all others, and lets them go on together."""
    callers = {}
    with socket.create_server(("", port), backlog=processes) as server:
        server.settimeout(LIMIT_S)
        while len(callers) < processes - 1:
            connection, _ = server.accept()
            callers[int.from_bytes(connection.recv(4), "big")] = connection
        for connection in callers.values():
            connection.sendall(b"!")
    return sorted(callers)


text = Path(sys.argv[1]).read_text()
keys = dict(re.findall(r"^(\w+): *(.+)$", text, re.M))
keys.update(word.split("=", 1) for word in sys.argv[2:])
rank, processes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
folder = Path(keys["base_output_directory"]) / "seen"
folder.mkdir(parents=True, exist_ok=True)
(folder / f"{rank}.json").write_text(
    json.dumps({"host": socket.gethostname(), "argv": sys.argv[1:], "env": dict(os.environ)})
)
if rank == 0:
    callers = listen(int(os.environ["JAX_COORDINATOR_PORT"]), processes)
    (folder / "callers.json").write_text(json.dumps(callers))
else:
    call((os.environ["JAX_COORDINATOR_IP"], int(os.environ["JAX_COORDINATOR_PORT"])), rank)
for step in range(int(keys["steps"])):
    print(
        time.strftime("I%m%d %H:%M:%S.000000 140675135284544 ")
        + f"metric_logger.py:265] completed step: {step}, seconds: 0.142, "
        "TFLOP/s/device: 1068.000, Tokens/s/device: 1150.293, total_weights: 32768, loss: 10.000"
    )
