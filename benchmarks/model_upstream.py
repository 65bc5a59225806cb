"""A model server as a process, for the interception benchmark: it answers after a while and says how long that was.

It runs `python -m benchmarks.model_upstream` and writes its port to standard output.
"""

from __future__ import annotations

import asyncio
import json
import random
import time

import uvloop

CHUNKS = 20
"""Events of a streamed answer that carry text."""
SPREAD = 0.2
"""Answers take the asked time, more or less by up to this share, so that rollouts do not march in step."""

_TEXT = "some words of an answer that is neither long nor short; "
_END = b"0\r\n\r\n"


class Model(asyncio.Protocol):
    """One connection; the time an answer takes is asked for by the field `model_sec`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._pending = b""
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self._pending += data
        head, separator, body = self._pending.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._pending = body[length:]
        request = json.loads(body[:length])
        took = request["model_sec"] * random.uniform(1 - SPREAD, 1 + SPREAD)
        began = time.perf_counter()
        if request.get("stream"):
            self._write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            self._loop.call_later(took / CHUNKS, self._piece, 1, took / CHUNKS, began)
        else:
            self._loop.call_later(took, self._whole, began)

    def _whole(self, began: float) -> None:
        message = {"role": "assistant", "content": _TEXT * CHUNKS}
        usage = {"prompt_tokens": 500, "completion_tokens": 240, "total_tokens": 740}
        body = json.dumps(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "model": "bench",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage,
                "took": time.perf_counter() - began,
            }
        ).encode()
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )

    def _piece(self, number: int, pause: float, began: float) -> None:
        last = number == CHUNKS
        delta = {"role": "assistant", "content": _TEXT}
        self._event(
            {"index": 0, "delta": delta, "finish_reason": "stop" if last else None}, took=time.perf_counter() - began
        )
        if last:
            self._write(_chunk(b"data: [DONE]\n\n") + _END)
        else:
            due = began + pause * (number + 1)
            self._loop.call_later(max(0.0, due - time.perf_counter()), self._piece, number + 1, pause, began)

    def _event(self, choice: dict[str, object], *, took: float) -> None:
        usage = {"prompt_tokens": 500, "completion_tokens": 240, "total_tokens": 740}
        data: dict[str, object] = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": "bench",
            "choices": [choice],
        }
        if choice["finish_reason"]:
            data["usage"] = usage
        self._write(_chunk(b"data: %b\n\n" % json.dumps({**data, "took": took}).encode()))

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
