"""Output in pieces, and terminals that nobody reads."""

import os

from launcher.node.output import BACKLOG_LIMIT, LINE_LIMIT, Console, Journal, LineSplitter


def test_lines_come_out_whole_whatever_the_pieces():
    text = "one\ntwo\r\n\u00fcber\n\nlast"
    data = text.encode()
    for size in (1, 2, 3, 7, len(data)):
        splitter = LineSplitter()
        lines = [line for start in range(0, len(data), size) for line in splitter.feed(data[start : start + size])]
        assert lines + splitter.close() == ["one", "two", "\u00fcber", "", "last"]


def test_an_endless_line_is_cut():
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (2 * LINE_LIMIT + 5))
    assert [len(line) for line in lines] == [LINE_LIMIT, LINE_LIMIT]
    assert splitter.close() == ["x" * 5]
    assert splitter.close() == []


def test_a_terminal_that_nobody_reads_holds_nobody_up(tmp_path):
    reader, writer = os.pipe()
    console = Console(writer, quiet=False)
    line = "x" * 999
    count = 3 * BACKLOG_LIMIT // 1000
    for _ in range(count):
        console.say(line)
    received = bytearray()
    os.set_blocking(reader, False)

    def drain():
        while True:
            console.flush(0)
            try:
                received.extend(os.read(reader, 1 << 16))
            except BlockingIOError:
                return

    drain()
    console.say("after")
    drain()
    os.close(reader)
    os.close(writer)
    lines = received.decode().splitlines()
    shown = lines.count(line)
    assert BACKLOG_LIMIT // 1000 <= shown < count
    assert lines[-2:] == [f"[worker] {count - shown} line(s) not shown: nobody read; the rank logs have them", "after"]


def test_a_reader_that_is_gone_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    console = Console(writer, quiet=False)
    console.say("to nobody")
    console.say("again")
    os.close(writer)


def test_quiet_and_missing_output():
    Console(None, quiet=False).say("x")
    reader, writer = os.pipe()
    Console(writer, quiet=True).say("x")
    os.close(writer)
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_journal_goes_on_without_its_file(tmp_path):
    Journal(tmp_path / "nowhere" / "worker0.log", Console(None, quiet=True)).say("x")
    path = tmp_path / "worker0.log"
    Journal(path, Console(None, quiet=True)).say("hello")
    assert path.read_text().endswith("Z hello\n")
