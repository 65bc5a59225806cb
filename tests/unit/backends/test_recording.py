"""Who decides about recording, what it needs, and how clients behind a proxy find it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rollbook.backends.recording import reach_loopback_directly
from tests.unit.backends.support import make_backend

WITHOUT_UVICORN = """
import importlib.abc, importlib.util, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "uvicorn" else real(name, package)
sys.meta_path.insert(0, Blocked())
from rollbook import AgentWorkflow, LocalBackend
class Workflow(AgentWorkflow):
    async def run(self, ctx):
        return []
LocalBackend(workflow=Workflow)
try:
    LocalBackend(workflow=Workflow, record_model_calls=True)
except ModuleNotFoundError as error:
    print(error)
"""


def test_nobody_has_decided_at_first() -> None:
    assert make_backend().record_model_calls is None
    assert make_backend(record_model_calls=False).record_model_calls is False


def test_a_base_install_says_which_extra_recording_needs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_UVICORN], capture_output=True, text=True, timeout=60, check=True
    )
    assert 'needs uvicorn; install it with pip install "rollbook[server]"' in ran.stdout


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, None),
        ({"no_proxy": "a.example"}, "a.example"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "127.0.0.1"),
        ({"http_proxy": "http://proxy:3128", "NO_PROXY": "a.example"}, "a.example,127.0.0.1"),
        ({"all_proxy": "http://proxy:3128", "no_proxy": "a.example, 127.0.0.1"}, "a.example, 127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "*"}, "*"),
    ],
)
def test_this_machine_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: str | None
) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("no_proxy", "NO_PROXY"):  # so that the test's end takes away what is set here
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    reach_loopback_directly()
    assert (os.environ.get("no_proxy") or os.environ.get("NO_PROXY")) == after
