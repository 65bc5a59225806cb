"""The application that an API serves."""

from __future__ import annotations

from rollbook.server.app import build_app
from rollbook.server.service import ApiService
from rollbook.settings import ApiSettings


def test_application_has_no_use_for_libraries_whose_objects_no_route_takes() -> None:
    app = build_app(ApiService(None, ApiSettings(database_url="sqlite:///unused", queue="q")))
    modules = {type(plugin).__module__ for plugin in app.plugins}
    # Litestar adds these by itself where the libraries are installed, as they are for tests.
    assert not {name for name in modules if name.startswith(("litestar.plugins.pydantic", "litestar.plugins.attrs"))}
