"""What docs/trainers.md shows for a server that is away outlasts outages of any length, and nothing else."""

import importlib
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook_client import RolloutProtocolError, RolloutStatus
from tests.support.documents import write_named
from tests.unit.client import virtual_time
from tests.unit.client.scripted import ScriptedServer, admitted, full_queue, result

LONG_SEC = 600.0


@pytest.fixture
def patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The documented module, imported as a trainer would."""
    write_named("docs/trainers.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "patience", raising=False)
    module = importlib.import_module("patience")
    monkeypatch.delitem(sys.modules, "patience")
    return module


def answer(status_code: int, detail: str = "why") -> httpx.Response:
    return httpx.Response(status_code, json={"detail": detail})


class Outage(ScriptedServer):
    """Answers in turn with what an outage looks like, for ten minutes from the request at which it begins."""

    def __init__(self, *before: httpx.Response, after: list[httpx.Response]) -> None:
        super().__init__(*before, *after)
        self.failures = 0
        self._before = len(before)
        self._until: float | None = None

    async def handle(self, request: httpx.Request) -> httpx.Response:
        if self._before:
            self._before -= 1
            return await super().handle(request)
        self._until = self._until or virtual_time.now() + LONG_SEC
        if virtual_time.now() >= self._until:
            return await super().handle(request)
        kinds = (answer(503), httpx.ConnectError("refused"), answer(502), httpx.ReadError("gone"), answer(504))
        self.failures += 1
        kind = kinds[self.failures % len(kinds)]
        if isinstance(kind, Exception):
            raise kind
        return kind


@pytest.mark.parametrize("admission_timeout_sec", [None, 60])
def test_admission_outlasts_ten_minutes(patience: Any, admission_timeout_sec: float | None) -> None:
    async def main() -> None:
        server = Outage(after=[full_queue(), admitted()])
        client = server.client(admission_timeout_sec=admission_timeout_sec)
        handle = await patience.persistent(client, "r1")
        handle.cancel()
        assert server.failures > LONG_SEC / 10

    virtual_time.run(main())


def test_poll_outlasts_ten_minutes(patience: Any) -> None:
    async def main() -> None:
        server = Outage(admitted(), after=[result("running"), result("success")])
        client = server.client()
        outcome = await patience.patient(client, await patience.persistent(client, "r1"))
        assert outcome.status is RolloutStatus.SUCCESS
        assert server.failures > LONG_SEC / 10

    virtual_time.run(main())


@pytest.mark.parametrize("status_code", [401, 409, 422])
def test_refused_admission_is_not_repeated(patience: Any, status_code: int) -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError) as caught:
            await patience.persistent(ScriptedServer(answer(status_code)).client(), "r1")
        assert caught.value.status_code == status_code

    virtual_time.run(main())


@pytest.mark.parametrize("status_code", [401, 403, 404])
def test_refused_poll_is_not_repeated(patience: Any, status_code: int) -> None:
    async def main() -> None:
        client = ScriptedServer(admitted(), answer(status_code)).client()
        with pytest.raises(RolloutProtocolError) as caught:
            await patience.patient(client, await patience.persistent(client, "r1"))
        assert caught.value.status_code == status_code

    virtual_time.run(main())
