"""After rollouts whose code is careless with its secrets: no file and no table holds them, in any form."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest

from rollbook_client import RolloutHandle, RolloutResultResponse
from tests.support.contents import all_bytes
from tests.support.processes import Deployment, until

API_KEY = "sk-Rq7/+zXv9=Kd03 mW5tYb81-llm"
TOKEN = "cap_4f9c17ee02d84bd1a6"
QUERY = "q=Zm9vYmFyLXNlY3JldA&sig=5e884898da28"
PASSWORD = "hunter2-hunter2-hunter2"
CHAT_URL = f"https://agent:{PASSWORD}@policy.example:8443/rollouts/{TOKEN}/v1?{QUERY}"
SECRETS = {
    "key": API_KEY,
    "url": CHAT_URL,
    "token in the path": TOKEN,
    "query": QUERY,
    "signature": "5e884898da28",
    "password": PASSWORD,
}
STAND_IN = re.compile(r"127\.0\.0\.1(:|%3A)\d+(/|%2F)s(/|%2F)[\w-]{43}")
"""The URL that workflows have in place of the trainer's where model calls are recorded; it holds the key beside it."""


def forms(secret: str) -> set[bytes]:
    """A secret as it is and as libraries write it."""
    texts = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], secret[:-1]}
    return {
        *(text.encode() for text in texts),
        base64.b64encode(secret.encode()),
        base64.urlsafe_b64encode(secret.encode()).rstrip(b"="),
    }


def secrets_in(content: bytes) -> list[str]:
    """The names of the secrets that it holds."""
    return [name for name, secret in SECRETS.items() if any(form in content for form in forms(secret))]


def leaks(folder: Path) -> list[tuple[str, str]]:
    """Files below a folder that hold a secret, with its name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [(str(path.relative_to(folder)), name) for path in files for name in secrets_in(path.read_bytes())]


def assert_nowhere(deployment: Deployment) -> None:
    """No secret is in a file, in the database or in what the database logs."""
    assert leaks(deployment.folder) == []
    assert STAND_IN.search(deployment.output) is None
    kept = all_bytes(deployment.database_url)
    assert b"hush" in kept
    assert secrets_in(kept) == []


async def admit(client: Any, name: str, plan: dict[str, Any]) -> RolloutHandle:
    handle: RolloutHandle = await client.run_rollout_async(
        [{"role": "user", "content": "hush"}], CHAT_URL, name, llm_api_key=API_KEY, label="done", metadata=plan
    )
    return handle


PLANS: dict[str, dict[str, Any]] = {
    "good": {"careless": "go on", "text": "done", "artifact": True},
    "raises": {"careless": "raise"},
    "grader-raises": {"text": "done", "grade": {"careless": "raise"}},
    "dies": {"careless": "die"},
    "cancelled": {"careless": "go on", "until": "never"},
}


def quiet(plan: dict[str, Any]) -> dict[str, Any]:
    return {key: quiet(value) if key == "grade" else value for key, value in plan.items()} | {"prints": False}


async def run_all(deployment: Deployment, plans: dict[str, dict[str, Any]]) -> dict[str, RolloutResultResponse]:
    """Every plan's result; they are searched for in the middle too, while secrets still lie sealed in the ledger."""
    async with deployment.client() as client:
        handles = {name: await admit(client, name, plan) for name, plan in plans.items()}
        await handles["cancelled"].wait_for_running()
        assert deployment.number("SELECT count(*) FROM secrets") > 0
        assert_nowhere(deployment)
        await client.cancel_rollout("cancelled")
        results = dict(zip(handles, await asyncio.gather(*handles.values()), strict=True))
    async with httpx.AsyncClient(verify=False) as http:
        # A request that is refused is not worth a line with its secrets either.
        body = {"rollout_id": "a/b", "initial_messages": [], "chat_completions_url": CHAT_URL, "llm_api_key": API_KEY}
        assert (await http.post(f"{deployment.url}/rollout", json=body)).status_code == 422
    return results


def assert_told_without_secrets(results: dict[str, RolloutResultResponse]) -> None:
    expected = {"good": "success", "cancelled": "cancelled"}
    assert {name: result.status for name, result in results.items()} == {
        name: expected.get(name, "failure") for name in results
    }
    for name in ("raises", "grader-raises"):
        message = results[name].err_message or ""
        assert message.startswith("cannot reach [llm_api_key] [chat_completions_url] ")
        assert not any(form.decode() in message for secret in SECRETS.values() for form in forms(secret))


@pytest.mark.parametrize("shape", ["serve", "apart", "embedded"])
async def test_secrets_are_nowhere(deployment: Deployment, shape: str) -> None:
    plans = PLANS
    if shape == "serve":
        deployment.serve("--max-attempts", "2")
    elif shape == "apart":
        deployment.api(max_attempts=2)
        deployment.scheduler(record_model_calls=False)  # so that user code has the trainer's own secrets at hand
    else:
        # There, code that ends its process ends the server, and what it prints goes where the host sends it.
        plans = {name: quiet(plan) for name, plan in PLANS.items() if name != "dies"}
        deployment.embedded()
    await deployment.answering()
    results = await run_all(deployment, plans)
    assert_told_without_secrets(results)

    shown = ["logged", "caught", "late"] + ["out", "err", "unended"] * (shape != "embedded")
    await until(
        lambda: all(f"{word} [llm_api_key] [chat_completions_url]" in deployment.output for word in shown),
        what=f"the words {shown} before a scrubbed secret",
    )
    assert deployment.number("SELECT count(*) FROM secrets") == 0
    assert (deployment.folder / ".rollbook/artifacts/good/notes.txt").is_file()
    assert_nowhere(deployment)
    for started in deployment.started:
        await started.stop()
    assert_nowhere(deployment)
    deployment.check_ledger()


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    (tmp_path / "clean").write_text("policy.example:8443 [llm_api_key]")
    assert leaks(tmp_path) == []
    for name, secret in SECRETS.items():
        for number, form in enumerate(sorted(forms(secret))):
            path = tmp_path / "dirty"
            path.write_bytes(b"x" * number + form + b"y")
            assert ("dirty", name) in leaks(tmp_path)
