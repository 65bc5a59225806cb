"""Processes as /proc shows them, and a server's life in a benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import (
    Server,
    ServerDied,
    cpu_sec,
    exists,
    free_port,
    memory_bytes,
    tree,
    watched,
    whole_cpu_sec,
)

SERVING = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok"}')

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_server_is_ready_when_entered_and_leaves_no_process_behind(tmp_path: Path) -> None:
    port = free_port()
    with Server((sys.executable, "-c", SERVING, str(port)), port=port, folder=tmp_path) as server:
        assert server.get("/health") == {"status": "ok"}
        members = server.processes()
        assert len(members) == 2
        assert all(exists(member) for member in members)
    assert not any(exists(member) for member in members)


def test_server_that_ends_before_it_answers_says_what_it_wrote(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no ledger here')")
    with pytest.raises(ServerDied, match="no ledger here"), Server(command, port=free_port(), folder=tmp_path):
        pytest.fail("it cannot be ready")


def test_own_process_has_cpu_time_and_memory() -> None:
    (own, *_) = tree(os.getpid())
    assert cpu_sec(own) > 0
    assert memory_bytes(own) > 1024 * 1024


def test_watching_counts_the_cpu_time_spent_meanwhile() -> None:
    command = (sys.executable, "-c", "import sys; sum(range(10_000_000)); print(flush=True); sys.stdin.read()")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdin is not None
        assert busy.stdout is not None
        with watched(tree(busy.pid)) as usage:
            busy.stdout.readline()
        busy.stdin.close()
    assert usage.cpu_sec["server"] > 0
    assert usage.peak_bytes > 0


def test_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as child:
        (gone,) = tree(child.pid)
        assert exists(gone)
        child.communicate()
    assert not exists(gone)
    assert (cpu_sec(gone), memory_bytes(gone)) == (0.0, 0)


def test_whole_cpu_time_keeps_that_of_children_that_ended() -> None:
    busy = "sum(range(5_000_000))"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{busy}']); print(flush=True); input()"
    with subprocess.Popen((sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (own,) = tree(parent.pid)
        assert whole_cpu_sec(parent.pid) > cpu_sec(own)
        parent.communicate()
