"""The event stream: frames, resuming, waking, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from rollbook.server import streams
from tests.contract.server.support import LIMIT_SEC, Api


class Frame(msgspec.Struct):
    """One parsed event of a stream."""

    id: int
    event: str
    data: Any


class Stream:
    """A stream as its client sees it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = asyncio.Event()
        self.gone = asyncio.Event()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        for block in message["body"].decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if "data" in fields:
                data = msgspec.json.decode(fields["data"])
                self._frames.put_nowait(Frame(int(fields["id"]), fields["event"], data))
        if not message["more_body"]:
            self.ended.set()

    async def next(self) -> Frame:
        return await asyncio.wait_for(self._frames.get(), LIMIT_SEC)

    @property
    def unread(self) -> int:
        return self._frames.qsize()


@asynccontextmanager
async def stream(api: Api, query: bytes = b"", last_event_id: str | None = None) -> AsyncIterator[Stream]:
    headers = [(b"host", b"api"), (b"accept", b"text/event-stream")]
    if last_event_id is not None:
        headers.append((b"last-event-id", last_event_id.encode()))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events",
        "raw_path": b"/events",
        "query_string": query,
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("api", 80),
        "client": ("test", 1),
    }
    client = Stream()
    task = asyncio.create_task(cast(Any, api.app)(scope, client.receive, client.send))
    try:
        yield client
    finally:
        client.gone.set()
        await asyncio.wait_for(task, LIMIT_SEC)


async def test_stream_tells_what_was_and_then_what_comes(api: Api) -> None:
    await api.admitted("r-1")
    async with stream(api) as client:
        first = await client.next()
        assert (first.event, first.data["rollout_id"]) == ("rollout_admitted", "r-1")
        assert client.status == 200
        assert client.headers["content-type"].startswith("text/event-stream")
        await api.admitted("r-2")
        second = await client.next()
        assert second.data["rollout_id"] == "r-2"
        assert second.id == second.data["position"] > first.id


async def test_stream_resumes_behind_the_last_event_seen(api: Api) -> None:
    for number in range(3):
        await api.admitted(f"r-{number}")
    async with stream(api) as client:
        positions = [(await client.next()).id for _ in range(3)]
    async with stream(api, last_event_id=str(positions[1])) as client:
        assert (await client.next()).data["rollout_id"] == "r-2"
    async with stream(api, query=b"after=%d" % positions[0]) as client:
        assert (await client.next()).data["rollout_id"] == "r-1"
    async with stream(api, query=b"after=0", last_event_id=str(positions[2])) as client:
        await api.admitted("r-3")
        assert (await client.next()).data["rollout_id"] == "r-3"


async def test_stream_tells_lease_renewals_too(api: Api) -> None:
    token = await api.admitted()
    async with stream(api) as client:
        await client.next()
        await api.poll(token)
        assert (await client.next()).event == "lease_renewed"


async def test_stream_ends_when_waits_end(api: Api) -> None:
    async with stream(api) as client:
        api.service.end_waits()
        await asyncio.wait_for(client.ended.wait(), LIMIT_SEC)
    async with stream(api) as client:
        await asyncio.wait_for(client.ended.wait(), LIMIT_SEC)


async def test_stream_ends_itself_after_its_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_SEC", 0.05)
    await api.admitted()
    async with stream(api) as client:
        assert (await client.next()).event == "rollout_admitted"
        await asyncio.wait_for(client.ended.wait(), LIMIT_SEC)
        assert client.unread == 0


async def test_stream_of_a_client_that_went_away_ends(api: Api) -> None:
    async with stream(api) as client:
        client.gone.set()
    assert not client.ended.is_set()


@pytest.mark.parametrize("value", ["-1", "one", "9223372036854775808", "1.5"])
async def test_stream_refuses_to_resume_from_what_is_no_event_id(api: Api, value: str) -> None:
    headers = {"accept": "text/event-stream", "last-event-id": value}
    response = await api.http.get("/events", headers=headers)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["header", "Last-Event-ID"]


async def test_frame_holds_one_line_of_data_whatever_lies_in_the_payload(api: Api) -> None:
    token = await api.admitted()
    await api.run(sample=b'{"messages": [],\r\n "label": "a\\nb",\n"reward": 1.0}')
    assert (await api.poll(token)).status_code == 200
    async with stream(api) as client:
        finished = await client.next()
        while finished.event != "rollout_finished":
            finished = await client.next()
        assert finished.data["payload"]["sample"] == {"messages": [], "label": "a\nb", "reward": 1.0}
