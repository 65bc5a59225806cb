"""ProgramHarness: any command that speaks to an OpenAI-compatible endpoint, run inside the rollout's runtime."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

from rollbook.sdk.values import MessageDict, shown
from rollbook.tasks.harnesses.base import Exchange, Harness, HarnessError
from rollbook.tasks.harnesses.written import Written, is_secret
from rollbook.tasks.runtimes.base import Completed, Runtime

__all__ = ["ProgramHarness"]

FOLDER = ".rollbook"
"""Below a program's working folder; each rollout has one of its own in there, for a runtime may be lent to several."""
MCP_FILE = "mcp.json"
MESSAGES_FILE = "messages.json"
PROMPT_FILE = "prompt.txt"
NOT_THERE = (126, 127)
"""Exit codes for a program that cannot be started, or that there is none of."""
STDERR_SHOWN_CHARS = 2_000
VARIABLE_MAX_BYTES = 65_536
"""Of a prompt in a variable: Linux takes twice as much in one, and bounds all of them together too."""


class ProgramHarness(Harness):
    """Runs `command` once for each segment. It finds, in its environment,

    ======================  =========================================================================
    `OPENAI_BASE_URL`       where the model is (`OPENAI_API_BASE` has the same, for older programs)
    `OPENAI_API_KEY`        a key that is good for this rollout alone
    `ROLLBOOK_MODEL`        the model's name to ask for
    `ROLLBOOK_PROMPT`       the text of the last user message; empty where it is longer than 64 KiB
    `ROLLBOOK_PROMPT_FILE`  a file with the same, for long ones
    `ROLLBOOK_MESSAGES`     a file with the whole conversation, a JSON list of OpenAI messages
    `ROLLBOOK_TOOLS_URL`    the task's tools, by the Model Context Protocol over HTTP, if it has any
    `ROLLBOOK_MCP_CONFIG`   a file that names them in the form of ``mcpServers``, if it has any
    ======================  =========================================================================

    and in the command each of ``{prompt}``, ``{prompt_file}``, ``{messages_file}`` and ``{model}`` is replaced where
    it is a list; a text is given to a shell as it is. An exit code other than 0 fails the segment, with the last of
    what the program wrote to its standard error. ``resumes=True`` says that the program can be started again on the
    conversation so far.

    However it ended, at its deadline too, the last 4 KiB that it wrote to its output and to its errors, over all
    segments, are in the trace's ``info["program"]``: `exit_code` of the last segment, `stdout`, `stderr`, without the
    rollout's key and without what variables of `env` hold whose names speak of a secret.
    """

    name: ClassVar[str] = "program"

    def __init__(
        self,
        command: Sequence[str] | str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        model: str | None = None,
        resumes: bool = False,
    ) -> None:
        if not command:
            raise ValueError("the command is empty; give the program and its arguments")
        self.command = command if isinstance(command, str) else tuple(map(os.fspath, command))
        self.env = dict(env or {})
        for part in (*self.command, *self.env, *self.env.values()):
            if not isinstance(part, str):
                raise TypeError(f"command and env are made of texts, got {shown(part)}; write str(…) around it")
        self.cwd = cwd
        self.model = model
        self.resumes = resumes  # type: ignore[misc]  # a program's own ability, said by whoever names it

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        runtime = exchange.runtime
        prompt = _prompt(exchange.messages).encode("utf-8", "replace")
        folder = _folder(exchange)
        await runtime.write(f"{folder}/{MESSAGES_FILE}", json.dumps(exchange.messages).encode())
        await runtime.write(f"{folder}/{PROMPT_FILE}", prompt)
        tools = await _offer_tools(exchange)
        values = {
            # No argument and no variable can hold a zero byte.
            "prompt": prompt.replace(b"\0", b"").decode(),
            "prompt_file": f"{runtime.workdir}/{folder}/{PROMPT_FILE}",
            "messages_file": f"{runtime.workdir}/{folder}/{MESSAGES_FILE}",
            "model": self.model or exchange.model,
        }
        env = self._environment(exchange, values) | tools | self.env
        secrets = self._secrets(exchange)

        def keep(ended: Completed) -> Written:
            written = Written(ended, secrets=secrets)
            written.keep(exchange.info)
            return written

        ended = await runtime.run(self._command(values), env=env, cwd=self.cwd, on_cut=keep)
        written = keep(ended)
        if ended.exit_code:
            raise HarnessError(self._how_it_ended(written, runtime))
        return None

    def _secrets(self, exchange: Exchange) -> dict[str, str]:
        """What must not be kept, by what stands in its place. Clients name the key that they were refused with."""
        own = {value: f"[{name}]" for name, value in self.env.items() if is_secret(name, value)}
        return own | {exchange.api_key: "[key]"}

    def _how_it_ended(self, written: Written, runtime: Runtime) -> str:
        said = f"the program ended with exit code {written.exit_code}"
        if written.exit_code in NOT_THERE and (why := runtime.why_absent(_first_word(self.command))):
            said += f", since {why}"
        tail = (written.stderr or written.stdout)[-STDERR_SHOWN_CHARS:]
        return said + (f": {tail}" if tail else " and wrote nothing")

    def _command(self, values: Mapping[str, str]) -> Sequence[str] | str:
        if isinstance(self.command, str):
            return self.command
        return [_filled(part, values) for part in self.command]

    def _environment(self, exchange: Exchange, values: Mapping[str, str]) -> dict[str, str]:
        url = _inside(exchange.base_url, exchange.runtime.url_of)
        return {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": exchange.api_key,
            "ROLLBOOK_MODEL": values["model"],
            "ROLLBOOK_PROMPT": values["prompt"] if len(values["prompt"].encode()) <= VARIABLE_MAX_BYTES else "",
            "ROLLBOOK_PROMPT_FILE": values["prompt_file"],
            "ROLLBOOK_MESSAGES": values["messages_file"],
        }


async def _offer_tools(exchange: Exchange) -> dict[str, str]:
    """Variables by which the program finds the task's tools; none where it has none."""
    if exchange.tools_url is None:
        return {}
    runtime = exchange.runtime
    url = _inside(exchange.tools_url, runtime.url_of)
    config = {"mcpServers": {"rollbook": {"type": "http", "url": url}}}
    path = f"{_folder(exchange)}/{MCP_FILE}"
    await runtime.write(path, json.dumps(config).encode(), mode=0o600)  # the URL is a secret
    return {"ROLLBOOK_TOOLS_URL": url, "ROLLBOOK_MCP_CONFIG": f"{runtime.workdir}/{path}"}


def _folder(exchange: Exchange) -> str:
    """The same for all segments of a rollout, and no other rollout's."""
    return f"{FOLDER}/{hashlib.sha256(exchange.api_key.encode()).hexdigest()[:16]}"


def _filled(part: str, values: Mapping[str, str]) -> str:
    # In one pass: what a prompt says is text, also where it says "{model}".
    return re.sub("|".join(f"{{{name}}}" for name in values), lambda found: values[found[0][1:-1]], part)


def _prompt(messages: Sequence[MessageDict]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


def _inside(url: str, url_of: Callable[[int], str]) -> str:
    """An address of the endpoint's as programs in the runtime reach it."""
    parts = urlsplit(url)
    reached = urlsplit(url_of(parts.port or 80))
    return urlunsplit((reached.scheme, reached.netloc, parts.path, "", ""))


def _first_word(command: Sequence[str] | str) -> str:
    if not isinstance(command, str):
        return command[0]
    try:
        return next(iter(shlex.split(command)), "")
    except ValueError:  # an open quote: the shell has said so
        return ""
