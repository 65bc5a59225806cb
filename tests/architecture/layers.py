"""Who may import whom, as a table; test_import_direction.py holds the code against it."""

from collections.abc import Iterable

import msgspec

from tests.architecture.sources import is_within

BASE = frozenset({"httpx", "msgspec"})
"""What a base install brings: enough for the client, the SDK and the local backend."""

CONTRACT = "rollbook_client"
PROJECTIONS = "rollbook_projections"
MIGRATIONS = "rollbook_migrations"


class Layer(msgspec.Struct, frozen=True):
    """What the modules below one prefix may import, besides the standard library and each other.

    The longest prefix decides, so an entry for one module is an exception from its package's entry.
    """

    prefix: str
    first_party: frozenset[str] = frozenset()
    third_party: frozenset[str] | None = None
    """Top-level names of other distributions; None leaves them open."""


def layer(prefix: str, *first_party: str, third_party: Iterable[str] | None = None) -> Layer:
    return Layer(prefix, frozenset(first_party), None if third_party is None else frozenset(third_party))


LEDGER_LIBRARIES = ("aiosqlite", "alembic", "asyncpg", "cryptography", "msgspec", "sqlalchemy")
SERVER_LIBRARIES = ("anyio", "httptools", "litestar", "msgspec", "prometheus_client", "uvicorn", "uvloop")

LAYERS = (
    layer(CONTRACT, third_party=BASE),
    layer(PROJECTIONS, CONTRACT, third_party=("msgspec", "sqlalchemy")),
    layer(MIGRATIONS, CONTRACT, PROJECTIONS, third_party=("alembic", "sqlalchemy")),
    # The root re-exports, lazily; the command line is where everything meets.
    layer("rollbook", CONTRACT, "rollbook.sdk", "rollbook.backends", "rollbook.server.embedded", third_party=BASE),
    layer("rollbook.__main__", "rollbook.cli", third_party=()),
    layer(
        "rollbook.cli",
        "rollbook",
        "rollbook.sdk",
        "rollbook.backends",
        "rollbook.traces",
        "rollbook.tasks",
        "rollbook.ledger",
        "rollbook.scheduler",
        "rollbook.server",
        CONTRACT,
        PROJECTIONS,
        MIGRATIONS,
    ),
    layer("rollbook.sdk", CONTRACT, third_party=BASE),
    layer("rollbook.traces", CONTRACT, third_party=("msgspec",)),
    layer(
        "rollbook.interception",
        "rollbook.interception.server",
        "rollbook.interception.connection",
        "rollbook.traces",
        "rollbook.sdk",
        CONTRACT,
        third_party=BASE,
    ),
    # The endpoint's two sides of HTTP, listening and calling: the modules that need more than a base install brings.
    layer("rollbook.interception.server", "rollbook.interception", third_party=("uvicorn",)),
    layer("rollbook.interception.connection", third_party=("httptools",)),
    layer("rollbook.backends", "rollbook.interception", "rollbook.traces", "rollbook.sdk", CONTRACT, third_party=BASE),
    layer(
        "rollbook.tasks",
        "rollbook.backends",
        "rollbook.interception",
        "rollbook.traces",
        "rollbook.sdk",
        CONTRACT,
        third_party=BASE,
    ),
    layer("rollbook.ledger", CONTRACT, PROJECTIONS, MIGRATIONS, third_party=LEDGER_LIBRARIES),
    layer("rollbook.metrics", "rollbook.ledger", third_party=("prometheus_client",)),
    layer(
        "rollbook.scheduler",
        "rollbook.ledger",
        "rollbook.metrics",
        CONTRACT,
        PROJECTIONS,
        third_party=("httpx", "msgspec", "prometheus_client", "uvloop"),
    ),
    # User code is reached through the runner alone, in whatever process that runs.
    layer(
        "rollbook.scheduler.runner",
        "rollbook.scheduler",
        "rollbook.backends",
        "rollbook.interception",
        "rollbook.traces",
        "rollbook.sdk",
        CONTRACT,
        third_party=("msgspec", "uvloop"),
    ),
    layer(
        "rollbook.server", "rollbook.ledger", "rollbook.metrics", CONTRACT, PROJECTIONS, third_party=SERVER_LIBRARIES
    ),
    # One process, API and scheduler: the only module of the server that knows of the other half.
    layer(
        "rollbook.server.embedded",
        "rollbook.server",
        "rollbook.scheduler",
        "rollbook.scheduler.runner",
        "rollbook.ledger",
        "rollbook.backends.base",
        CONTRACT,
        PROJECTIONS,
        third_party=SERVER_LIBRARIES,
    ),
)

SHARED = layer("", CONTRACT, third_party=BASE)
"""Modules under `rollbook` that belong to no layer above (settings, logging): leaves which the app's layers may use."""

PURE = (
    "rollbook_client.events",
    "rollbook_projections.evolve",
    "rollbook_projections.state",
    "rollbook.ledger.commands",
    "rollbook.ledger.decide",
    "rollbook.ledger.refusals",
    "rollbook.traces.calls",
    "rollbook.traces.events",
    "rollbook.traces.graph",
    "rollbook.traces.matching",
    "rollbook.traces.sample",
    "rollbook.traces.storage",
    "rollbook.traces.sums",
    "rollbook.traces.tokens",
    "rollbook.traces.trace",
    "rollbook.traces.training",
)
"""Rules and folds: no I/O, no clock, no SQL, neither directly nor through what they import."""

IMPURE_LIBRARIES = frozenset({"aiosqlite", "alembic", "anyio", "asyncpg", "litestar", "sqlalchemy", "uvicorn"})
IMPURE_STANDARD = frozenset(
    {"asyncio", "io", "os", "random", "secrets", "shutil", "socket", "sqlite3", "subprocess", "threading", "time"}
)


def layer_of(name: str) -> Layer:
    """The entry that governs a module. `rollbook` governs its `__init__` alone, not what lies below it."""
    fitting = [
        entry
        for entry in LAYERS
        if name == entry.prefix or (entry.prefix != "rollbook" and is_within(name, entry.prefix))
    ]
    return max(fitting, key=lambda entry: len(entry.prefix), default=SHARED)


def may_import(name: str, *, target: str) -> bool:
    """Whether the table lets module `name` import the first-party module `target`."""
    importer, imported = layer_of(name), layer_of(target)
    if importer is imported:
        return True
    if imported is SHARED:
        return is_within(name, "rollbook")
    # An allowed prefix covers what lies below it, but no module below it that has an entry of its own:
    # allowing `rollbook.server` does not allow `rollbook.server.embedded`.
    return any(is_within(target, prefix) and is_within(prefix, imported.prefix) for prefix in importer.first_party)
