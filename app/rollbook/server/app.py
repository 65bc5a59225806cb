"""The Litestar application: routes, the key's gate, and how errors are answered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from litestar import Litestar, Request
from litestar.exceptions import HTTPException, ValidationException
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.response import Response

from .answers import error_answer
from .auth import KeyGate
from .errors import ApiError, FieldError, as_api_error
from .operator_routes import operator_routes
from .rollout_routes import rollout_routes
from .service import ApiService

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]


class ApiApplication(Litestar):
    """Litestar for routes of which none takes or gives the objects of another library than msgspec.

    Litestar itself loads pydantic and attrs wherever they are installed: an eighth of an API's start.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def build_app(
    service: ApiService, *, lifespan: Lifespan | None = None, kind: type[Litestar] = ApiApplication
) -> Litestar:
    """The application of one service, ready for any ASGI server.

    ``lifespan`` is entered when the server starts and left when it ends; a service made without a ledger gets it there.
    """
    app = kind(
        [rollout_routes(service), *operator_routes(service)],
        lifespan=None if lifespan is None else [lifespan],
        exception_handlers={Exception: partial(_answer_error, service)},
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    api_key, operator_api_key = service.settings.api_key, service.settings.operator_api_key
    if api_key is not None or operator_api_key is not None:
        # Around the whole application and not per route: a path without a route must not tell that it has none.
        app.asgi_handler = KeyGate(app.asgi_handler, api_key, operator_api_key=operator_api_key)
    return app


def _answer_error(service: ApiService, _: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    known = _from_litestar(error) if isinstance(error, HTTPException) else as_api_error(error, service.outages)
    answer = error_answer(known)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body, status_code=answer.status, headers=headers, media_type="application/json")


def _from_litestar(error: HTTPException) -> ApiError:
    if isinstance(error, ValidationException):
        return ApiError(422, tuple(_field_error(item) for item in _items(error.extra)))
    headers = tuple((name.lower().encode(), str(value).encode()) for name, value in (error.headers or {}).items())
    return ApiError(error.status_code, error.detail, headers=headers)


def _items(extra: Any) -> list[Any]:
    return extra if isinstance(extra, list) and extra else [{}]


def _field_error(item: Any) -> FieldError:
    """Litestar's way to say what is wrong with a parameter, in ours."""
    source = item.get("source", "query")
    place = str(getattr(source, "value", source))
    key = item.get("key")
    return FieldError((place, str(key)) if key else (place,), str(item.get("message", "wrong value")), "value_error")
