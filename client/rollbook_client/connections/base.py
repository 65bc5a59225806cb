"""What the client asks of its HTTP connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import httpx


class Connections(Protocol):
    """Sends one request at a time per call; any number of calls may be under way.

    A call may be cancelled at any moment: it ends at once, and later calls work as if it had never been made. This is
    a guarantee of its own because httpcore's pool (1.0.9) does not give it: a call cancelled in the instant between
    getting a connection and using it, or while its answer is being put away, leaves a connection that counts against
    the pool's limit for ever.
    """

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        timeout_sec: float | None = None,
    ) -> httpx.Response:
        """Send a request and read its whole answer, following no redirect.

        `timeout_sec` bounds each of connecting, writing, waiting for bytes and waiting for a connection; None takes
        the connections' own timeouts.

        Raises:
            httpx.TransportError: the request was not answered.
            RuntimeError: the connections are closed.
        """
        ...

    async def aclose(self) -> None:
        """Release what belongs to these connections, not what was borrowed."""
        ...
