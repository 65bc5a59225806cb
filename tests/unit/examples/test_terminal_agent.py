"""The agent program of `examples/terminal`: what it makes of the model's calls, and of a model that cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.terminal import agent
from tests.support.model_server import ModelServer, Raw, Say, Status, in_thread


def bash(command: str) -> dict[str, Any]:
    """A call of its tool."""
    return {"id": "c1", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in, a conversation and a key."""
    monkeypatch.chdir(tmp_path)
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Do it."}]))
    monkeypatch.setenv("ROLLBOOK_MESSAGES", str(messages))
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setattr(agent, "PAUSE_SEC", 0.001)


def test_command_runs_and_its_exit_code_and_both_outputs_are_told() -> None:
    assert agent.result(bash("echo out; echo err >&2; exit 3")) == "exit code 3\nout\nerr\n"


def test_command_sees_no_key_of_the_model() -> None:
    assert agent.result(bash('echo "[$OPENAI_API_KEY]"')) == "exit code 0\n[]\n"


def test_long_output_is_cut_in_its_middle() -> None:
    told = agent.result(bash("head -c 10000 /dev/zero | tr '\\0' a; echo; echo end"))
    assert len(told) < 8_200
    assert "[… 2005 characters …]" in told
    assert told.endswith("end\n")


def test_command_that_never_ends_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "COMMAND_TIMEOUT_SEC", 0.2)
    told = agent.result(bash("echo begun; sleep 1000 & sleep 1000"))
    assert told == "exit code -9\nbegun\n\n[ended after 0.2 s]"


@pytest.mark.parametrize("arguments", ["no JSON", "[]", '{"cmd": "ls"}', "null"])
def test_call_that_does_not_fit_is_told_to_the_model(arguments: str) -> None:
    told = agent.result({"id": "c1", "function": {"name": "bash", "arguments": arguments}})
    assert told == 'error: call bash with {"command": "…"}'


def test_it_works_until_the_model_calls_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = (Say(None, [("c1", "bash", '{"command": "echo x > y"}')]), Say("Done."))
    with in_thread(ModelServer(*replies)) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        assert agent.main() == 0
    assert Path("y").read_text() == "x\n"
    roles = [message["role"] for message in model.received[1].json["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]


def test_stopped_rollout_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    body = b'{"error": {"message": "rollout stopped: max_turns", "type": "rollout_stopped"}}'
    with in_thread(ModelServer(Status(400, body))) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        assert agent.main() == 0
    assert capsys.readouterr() == ("rollout stopped: max_turns\n", "")


def test_busy_model_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(ModelServer(Status(429), Status(503), Say("Done."))) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        assert agent.main() == 0
    assert len(model.received) == 3


@pytest.mark.parametrize(
    ("default", "asked"),
    [(Status(500), 3), (Status(401), 1), (Raw([b'{"what": 1}']), 1)],
    ids=["500", "401", "garbage"],
)
def test_model_that_cannot_be_asked_is_told_on_the_error_output(
    default: Any, asked: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_thread(ModelServer(default=default)) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        assert agent.main() == 1
    assert len(model.received) == asked
    assert "the model cannot be asked" in capsys.readouterr().err
