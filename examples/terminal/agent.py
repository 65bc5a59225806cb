"""A small agent for a shell: it has one tool, `bash`, and works until the model calls it no more.

It is a program of its own and knows nothing of Rollbook but the variables that it is started with: where the model is
(OPENAI_BASE_URL, OPENAI_API_KEY), its name (ROLLBOOK_MODEL), and a file with the conversation so far
(ROLLBOOK_MESSAGES). Python's standard library is all it needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_SEC = 60.0
REQUEST_TIMEOUT_SEC = 600.0
OUTPUT_SHOWN_CHARS = 8_000
TRIES = 3
PAUSE_SEC = 0.2
PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})

SYSTEM = """\
You work at a shell in the current folder. Look around first, then do what the user asks, with the tool `bash`. Every \
command starts in the same folder, and nothing of an earlier one is left but its files. When the work is done, say so \
without calling the tool. If it cannot be done, answer with GIVE UP and the reason."""

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command and read what it writes.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class Stopped(Exception):
    """The rollout takes no further turn."""


def main() -> int:
    messages = json.loads(Path(os.environ["ROLLBOOK_MESSAGES"]).read_text(encoding="utf-8"))
    if not any(message["role"] == "system" for message in messages):
        messages.insert(0, {"role": "system", "content": SYSTEM})
    try:
        while calls := step(messages):
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": result(call)} for call in calls]
    except Stopped as stopped:
        print(stopped)
    except OSError as error:
        print(f"the model cannot be asked: {error}", file=sys.stderr)
        return 1
    return 0


def step(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask the model once; the calls that it makes."""
    body = {"model": os.environ.get("ROLLBOOK_MODEL", "policy"), "messages": messages, "tools": [BASH]}
    answer = ask(body)
    try:
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls") or []
    except (LookupError, TypeError, AttributeError) as error:
        raise OSError(f"it answered with no chat completion: {str(answer)[:500]}") from error
    messages.append(message)
    return calls


def ask(body: dict[str, Any]) -> Any:
    """The model's answer. Raises OSError where there is none, after some tries if the cause may pass."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    # A proxy for the outer world leads nowhere from here.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for left in reversed(range(TRIES)):
        try:
            with opener.open(request, timeout=REQUEST_TIMEOUT_SEC) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            if error.code == 400 and "rollout_stopped" in said:
                raise Stopped(json.loads(said)["error"]["message"]) from None
            if not left or error.code not in PASSING_STATUSES:
                raise OSError(f"HTTP {error.code}: {said[:500]}") from error
        except urllib.error.URLError:
            if not left:
                raise
        except ValueError as error:
            raise OSError(f"it answered with no JSON: {error}") from error
        time.sleep(PAUSE_SEC * 2 ** (TRIES - left))
    raise AssertionError("the last try returns or raises")


def result(call: dict[str, Any]) -> str:
    """What a command wrote, as the model is told."""
    try:
        arguments = json.loads(call["function"]["arguments"])
        command = arguments["command"]
    except (ValueError, LookupError, TypeError):
        return 'error: call bash with {"command": "…"}'
    try:
        code, output = run(str(command))
    except ValueError as error:  # a zero byte
        return f"error: {error}"
    if len(output) > OUTPUT_SHOWN_CHARS:
        half = OUTPUT_SHOWN_CHARS // 2
        output = f"{output[:half]}\n[… {len(output) - 2 * half} characters …]\n{output[-half:]}"
    return f"exit code {code}\n{output}"


def run(command: str) -> tuple[int, str]:
    """A command's exit code and output, the error output in between as it came."""
    # The model's key is for this program alone.
    own = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=COMMAND_TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\n[ended after {COMMAND_TIMEOUT_SEC:g} s]".encode()
    return process.returncode, output.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
