"""Messages through a webhook: what arrives at a real HTTP server, and that its URL is nowhere but in the environment."""

import os
import subprocess
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from chat import SECRET, Chat, Handler

from launcher.node import telling
from launcher.node.telling import Teller, post, tell_now

NAME = "TEST_WEBHOOK_URL"


@pytest.fixture
def chat(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(telling, "PAUSES", (0.0, 0.0, 0.0))
    server = Chat()
    monkeypatch.setenv(NAME, server.url)
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()


def test_a_message_arrives_as_chats_take_it(chat):
    said = []
    tell_now(NAME, "demo-1a2b", "attempt 1: restart: <rank 3> died & was seen", said.append)
    assert said == []
    assert chat.posts == [{"text": "demo-1a2b: attempt 1: restart: &lt;rank 3&gt; died &amp; was seen"}]


def test_without_a_variable_nothing_is_started(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    teller = Teller(None, "demo", print)
    teller.tell("nobody hears this")
    teller.look(0.0)
    teller.close()


@pytest.mark.parametrize("answers", [(503,), (429, 500), ("nonsense", 200)])
def test_what_may_pass_is_tried_again(chat, answers):
    chat.answers.extend(answers)
    assert post(chat.url, "text") == ""
    assert len(chat.posts) == 1


@pytest.mark.parametrize(
    ("code", "tries"), [(400, 1), (403, 1), (404, 1), (410, 1), (301, 1), (302, 1), (307, 1), (503, 3)]
)
def test_a_refusal_is_told_with_its_code_and_training_goes_on(chat, code, tries):
    chat.answers.extend([code] * 3)
    why = post(chat.url, "text")
    assert why.startswith(f"HTTP {code}")
    assert len(chat.answers) == 3 - tries
    assert chat.posts == []


def refused_port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        return server.server_port


@pytest.mark.parametrize(
    "url",
    [
        f"http://no-such-host.invalid/{SECRET}",
        f"ftp://127.0.0.1/{SECRET}",
        f"file:///etc/{SECRET}",
        f"/{SECRET}",
        f"{SECRET}",
        f"http://127.0.0.1:port/{SECRET}",
        f"http://127.0.0.1/{SECRET} with a blank",
        f"http://127.0.0.1/{SECRET}\x01",
        f"http://[::1/{SECRET}",
        f"https://{SECRET}@127.0.0.1:{refused_port()}/",
        "",
    ],
)
def test_no_url_is_ever_said(monkeypatch, url, capfd):
    monkeypatch.setenv(NAME, url)
    monkeypatch.setenv("no_proxy", "*")
    said = []
    teller = Teller(NAME, "demo", said.append)
    teller.tell("text")
    teller.close(60)
    assert len(said) == 1
    assert said[0].startswith("webhook: a message was lost: ")
    assert NAME in said[0]
    for told in (*said, *capfd.readouterr()):
        assert SECRET not in told
        assert "Traceback" not in told


def test_no_url_is_on_a_command_line(chat):
    chat.gate.clear()
    teller = Teller(NAME, "demo", print)
    teller.tell("text")
    teller.look(0.0)
    child = teller._child
    words = b""
    while not words:  # the kernel shows it a moment after the child has begun
        words = Path(f"/proc/{child.pid}/cmdline").read_bytes()
    assert NAME.encode() in words
    assert SECRET.encode() not in words
    chat.gate.set()
    teller.close(60)
    assert chat.lines == ["demo: text"]


def test_looking_never_waits_and_what_comes_meanwhile_goes_together(chat):
    """A server that does not answer holds up nothing; one message carries all that was told while it was silent."""
    chat.gate.clear()
    teller = Teller(NAME, "demo", print)
    teller.tell("first")
    teller.look(0.0)
    for index in range(30):
        teller.tell(f"alarm {index}")
        teller.look(1000.0 + index)
    assert chat.posts == []
    chat.gate.set()
    teller._child.wait(60)
    teller.look(2000.0)
    teller.look(2000.1)
    teller.close(60)
    assert [len(post["text"].splitlines()) for post in chat.posts] == [1, 21]
    assert chat.lines[:2] == ["demo: first", "demo: alarm 0"]
    assert chat.lines[-1] == "demo: and 10 more, see `launcher events demo`"


def test_two_messages_keep_their_distance(chat):
    teller = Teller(NAME, "demo", print)
    for at, text in ((0.0, "a"), (1.0, "b"), (2.0, "c")):
        teller.tell(text)
        teller.look(at)
        if teller._child is not None:
            teller._child.wait(60)
    teller.look(telling.GAP_SECONDS - 1)
    assert chat.lines == ["demo: a"]
    teller.look(telling.GAP_SECONDS + 1)
    teller._child.wait(60)
    assert chat.lines == ["demo: a", "demo: b", "demo: c"]
    teller.close()


def test_an_end_does_not_wait_for_a_silent_server(chat):
    chat.gate.clear()
    teller = Teller(NAME, "demo", print)
    teller.tell("text")
    teller.close(0.2)
    assert chat.posts == []
    chat.gate.set()
    deadline = time.monotonic() + 60
    while not chat.posts and time.monotonic() < deadline:
        time.sleep(0.05)
    assert chat.lines == ["demo: text"]  # the child was let


def test_a_python_that_is_gone_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    said = []
    tell_now(NAME, "demo", "text", said.append)
    assert said == ["webhook: cannot start /nowhere/python3: No such file or directory"]


def test_the_child_needs_nothing_beside_it(chat, tmp_path):
    """The program is one file: whatever lies in the current folder or in PYTHONPATH is not imported."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    done = subprocess.run(
        [sys.executable, "-I", "-B", telling.__file__, NAME],
        input=b"text",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert chat.lines == ["text"]
