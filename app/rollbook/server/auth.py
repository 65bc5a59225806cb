"""The bearer key: checked before routing, so it guards every path and method, unknown ones too."""

from __future__ import annotations

import hmac

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from .answers import error_answer, send_answer
from .errors import UNAUTHORIZED, ApiError

_REFUSAL = error_answer(ApiError(401, UNAUTHORIZED))


class KeyGate:
    """Lets requests through whose `Authorization` header is exactly `Bearer <key>`; answers 401 to all others."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = b"Bearer " + api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == ScopeType.HTTP:
            await send_answer(send, _REFUSAL)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": UNAUTHORIZED})
