"""The interception endpoint as a process, for its benchmark: sessions whose policy keeps nothing back.

It runs `python -m benchmarks.intercepted UPSTREAM_PORT SESSIONS` and writes a JSON list of the sessions' URLs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import uvloop

from rollbook.interception import Request, Response
from rollbook.interception.endpoint import Endpoint
from rollbook.traces.calls import ModelCall


class Counting:
    """Lets everything through and counts it."""

    needs_whole_answer = False

    def __init__(self) -> None:
        self.answers = 0
        self.failures = 0

    async def before(self, request: Request) -> Request:
        """Let it through."""
        return request

    async def answered(self, request: Request, response: Response, call: ModelCall) -> Response:
        """Count it."""
        self.answers += 1
        return response

    def left(self, request: Request, *, had_part: bool) -> Callable[[], None]:
        """Go on: a client that hangs up is a failure, and counted as such."""
        return lambda: None

    def broke(self, message: str) -> None:
        """End the measurement: its numbers would be of something else."""
        raise AssertionError(message)

    def failed(self, request: Request, call: ModelCall) -> None:
        """Count it."""
        self.failures += 1


async def main(upstream_port: int, sessions: int) -> None:
    """Serve until killed."""
    endpoint = Endpoint()
    await endpoint.start()
    policy = Counting()
    opened = [endpoint.open(f"http://127.0.0.1:{upstream_port}/v1", "bench-key", policy) for _ in range(sessions)]
    print(json.dumps([session.base_url for session in opened]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
