"""The README's first rollout, as it is written: the files, the server, the trainer, and every command to look at it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from rollbook.ledger.urls import SQLITE
from tests.architecture.sources import ROOT
from tests.support.processes import LIMIT_SEC, Deployment, until

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def database() -> str:
    """What needs no server."""
    return SQLITE


def run(deployment: Deployment, *arguments: str) -> str:
    """What a Python process in the deployment's folder prints; it must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=deployment.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SEC,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


async def test_first_rollout_works_as_written(deployment: Deployment) -> None:
    workflow, trainer = PYTHON.findall(README)
    _, serve, look, _ = (block.splitlines() for block in SHELL.findall(README))
    (deployment.folder / "my_rollout.py").write_text(workflow)
    (deployment.folder / "trainer.py").write_text(trainer.replace("http://127.0.0.1:8000", deployment.url))
    assert serve == ["rollbook serve my_rollout.py"]
    server = deployment.start("serve", "-m", "rollbook", "serve", "my_rollout.py", "--port", str(deployment.port))
    await until(lambda: server.ended or "rollbook: listening on" in server.output, what="the server answers")

    results = [line.split() for line in run(deployment, "trainer.py").splitlines()]
    assert len(results) == 12
    assert {status for _, status, _ in results} == {"success"}
    assert {reward for _, _, reward in results} <= {"0.0", "1.0"}

    rollout_id = results[0][0]
    assert len(look) == 6
    for line in look:
        command, *arguments = shlex.split(line.replace("show ID", f"show {rollout_id}").replace("--follow", ""))
        # Python's own sqlite3 shell, since the other one may not be there.
        output = run(deployment, "-m", command, *arguments)
        if "--status failure" not in line:
            assert output.strip(), line
    assert await server.stop() == 0, server.output
    assert deployment.pids() == []
