"""The bearer keys: checked before routing, so they guard every path and method, unknown ones too."""

from __future__ import annotations

import hmac

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from .answers import error_answer, send_answer
from .errors import UNAUTHORIZED, ApiError

OPERATOR_ENDINGS = frozenset({"rollouts", "events", "metrics"})
"""What the paths of the operator routes end with, and no path of a trainer's."""
COMMON_ENDINGS = frozenset({"health", "schema", "openapi.json"})
"""What the paths that either key opens end with."""

_REFUSAL = error_answer(ApiError(401, UNAUTHORIZED))


class KeyGate:
    """Lets requests through whose `Authorization` header is exactly `Bearer <key>`; answers 401 to all others.

    With an operator key, the operator routes answer to that one only, `/health` and `/schema` to both, and everything
    else to ``api_key`` only. A key that is None leaves what it would open to everybody; without an operator key
    ``api_key`` is for all.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, *, operator_api_key: str | None = None) -> None:
        self._app = app
        trainer, operator = _header(api_key), _header(operator_api_key)
        self._told_apart = operator is not None
        self._for_trainers = (trainer,)
        self._for_operators = (operator,)
        self._for_both = (trainer, operator)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = self._keys(scope)
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if any(key is None or hmac.compare_digest(given, key) for key in keys):
            await self._app(scope, receive, send)
        elif scope["type"] == ScopeType.HTTP:
            await send_answer(send, _REFUSAL)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": UNAUTHORIZED})

    def _keys(self, scope: Scope) -> tuple[bytes | None, ...]:
        if not self._told_apart:
            return self._for_trainers
        ending = _ending(scope)
        if ending in OPERATOR_ENDINGS:
            return self._for_operators
        return self._for_both if ending in COMMON_ENDINGS else self._for_trainers


def _header(key: str | None) -> bytes | None:
    return None if key is None else b"Bearer " + key.encode()


def _ending(scope: Scope) -> str:
    """The last part of the path that is routed.

    The router folds slashes at the start, the middle and the end, and cuts a mount's prefix off. The last part stays
    the same through all of that, so no other spelling of an operator's path passes for a trainer's.
    """
    path, prefix = scope["path"], scope.get("root_path", "")
    routed = path.split(prefix, maxsplit=1)[-1] if prefix else path
    return routed.rstrip("/").rpartition("/")[2]
