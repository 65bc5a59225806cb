"""Imports point one way: contract ← projections ← ledger ← {scheduler, server} ← cli, and sdk ← backends ← runner."""

import subprocess
import sys
from collections import deque
from collections.abc import Iterable

import pytest

from tests.architecture.layers import IMPURE_LIBRARIES, IMPURE_STANDARD, PURE, layer_of, may_import
from tests.architecture.sources import (
    Module,
    imports,
    imports_of_source,
    is_first_party,
    is_within,
    modules,
)

STANDARD_LIBRARY = sys.stdlib_module_names | {"annotationlib"}
"""With what newer interpreters than this one have."""


def _top(target: str) -> str:
    return target.partition(".")[0]


def _is_third_party(target: str) -> bool:
    return not is_first_party(target) and _top(target) not in STANDARD_LIBRARY


@pytest.mark.parametrize("name", modules())
def test_module_imports_only_layers_below_its_own(name: str) -> None:
    module = modules()[name]
    wrong = [
        f"{module.path}:{found.line} imports {found.target}"
        for found in imports(module)
        if is_first_party(found.target) and not may_import(name, target=found.target)
    ]
    assert not wrong, f"imports against the direction in tests/architecture/layers.py: {wrong}"


@pytest.mark.parametrize("name", modules())
def test_module_imports_only_the_distributions_its_layer_has(name: str) -> None:
    module = modules()[name]
    allowed = layer_of(name).third_party
    wrong = [
        f"{module.path}:{found.line} imports {found.target}"
        for found in imports(module)
        if allowed is not None and _is_third_party(found.target) and _top(found.target) not in allowed
    ]
    assert not wrong, f"distributions that tests/architecture/layers.py does not give this layer: {wrong}"


@pytest.mark.parametrize("name", PURE)
def test_pure_module_reaches_no_database_and_no_server(name: str) -> None:
    chains: dict[str, tuple[str, ...]] = {name: (name,)}
    queue = deque([name])
    while queue:
        current = queue.popleft()
        for found in imports(modules()[current]):
            chain = (*chains[current], found.target)
            assert _top(found.target) not in IMPURE_LIBRARIES, f"a pure module reaches I/O: {' → '.join(chain)}"
            if found.target in modules() and found.target not in chains:
                chains[found.target] = chain
                queue.append(found.target)


@pytest.mark.parametrize("name", PURE)
def test_pure_module_uses_no_clock_and_no_io_of_the_standard_library(name: str) -> None:
    module = modules()[name]
    wrong = [
        f"{module.path}:{found.line} {found.target}"
        for found in imports(module)
        if _top(found.target) in IMPURE_STANDARD
    ]
    assert not wrong, f"a pure module gets time, entropy and data as arguments: {wrong}"


def _loaded_by(name: str, *, among: Iterable[str]) -> list[str]:
    """Which of the modules an interpreter has loaded after it imported `name`."""
    prefixes = tuple(among)
    script = f"import sys, {name}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [loaded for loaded in done.stdout.split() if any(is_within(loaded, prefix) for prefix in prefixes)]


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        ("rollbook_client", ["rollbook", "rollbook_projections", "sqlalchemy", "litestar"]),
        ("rollbook_projections", ["rollbook", "litestar"]),
        ("rollbook", ["rollbook.server", "rollbook.ledger", "rollbook.scheduler", "litestar", "sqlalchemy", "typer"]),
    ],
)
def test_importing_a_package_loads_nothing_above_it(name: str, unwanted: list[str]) -> None:
    assert not _loaded_by(name, among=unwanted)


# The table and the reader are code too: what follows holds them against examples.


@pytest.mark.parametrize(
    ("name", "target", "allowed"),
    [
        ("rollbook_client.client", "rollbook_client.messages", True),
        ("rollbook_client.client", "rollbook_projections.state", False),
        ("rollbook_client.client", "rollbook.settings", False),
        ("rollbook_projections.evolve", "rollbook_client.events", True),
        ("rollbook_projections.evolve", "rollbook.ledger.codec", False),
        ("rollbook.ledger.writer", "rollbook_projections.tables", True),
        ("rollbook.ledger.writer", "rollbook_migrations", True),
        ("rollbook.ledger.writer", "rollbook.server.app", False),
        ("rollbook.ledger.writer", "rollbook.settings", True),
        ("rollbook.settings", "rollbook.ledger.writer", False),
        ("rollbook.server.polling", "rollbook.ledger.writer", True),
        ("rollbook.server.polling", "rollbook.backends.base", False),
        ("rollbook.server.polling", "rollbook.sdk.sample", False),
        ("rollbook.server.polling", "rollbook.scheduler.claims", False),
        ("rollbook.server.polling", "rollbook.server.embedded", False),
        ("rollbook.server.polling", "rollbook", False),
        ("rollbook.server.embedded", "rollbook.scheduler.claims", True),
        ("rollbook.server.embedded", "rollbook.backends.base", True),
        ("rollbook.server.embedded", "rollbook.backends.local", False),
        ("rollbook.scheduler.claims", "rollbook.ledger.writer", True),
        ("rollbook.scheduler.claims", "rollbook.backends.local", False),
        ("rollbook.scheduler.claims", "rollbook.server.app", False),
        ("rollbook.scheduler.metrics", "rollbook.metrics.families", True),
        ("rollbook.scheduler.metrics", "rollbook.server.metrics", False),
        ("rollbook.server.metrics", "rollbook.metrics.families", True),
        ("rollbook.metrics.families", "rollbook.ledger.meters", True),
        ("rollbook.metrics.families", "rollbook.server.meters", False),
        ("rollbook.metrics.families", "rollbook.scheduler.scheduler", False),
        ("rollbook.scheduler.runner", "rollbook.backends.local", True),
        ("rollbook.scheduler.runner", "rollbook.ledger.writer", False),
        ("rollbook.backends.local", "rollbook.sdk.sample", True),
        ("rollbook.sdk.sample", "rollbook.backends.local", False),
        ("rollbook.cli.serve", "rollbook.server.app", True),
        ("rollbook", "rollbook.sdk", True),
        ("rollbook", "rollbook.server.embedded", True),
        ("rollbook", "rollbook.server.app", False),
        ("rollbook_migrations.env", "rollbook.ledger.engines", False),
    ],
)
def test_table_decides_as_the_design_does(name: str, target: str, *, allowed: bool) -> None:
    assert may_import(name, target=target) is allowed


def test_reader_finds_every_way_to_import() -> None:
    module = Module("rollbook.ledger.writer", modules()["rollbook_client.events"].path)
    known = frozenset({"rollbook.ledger.codec", "rollbook.server.app"})
    source = """
import rollbook.server.app
from rollbook.server import app
from . import codec
from .codec import encode
from .. import settings
from ..server.app import create
def later():
    import sqlalchemy.orm
"""
    found = [item.target for item in imports_of_source(source, module=module, known=known)]
    assert sorted(found) == sorted(
        [
            "rollbook.server.app",
            "rollbook.server.app",
            "rollbook.ledger.codec",
            "rollbook.ledger.codec",
            "rollbook",
            "rollbook.server.app",
            "sqlalchemy.orm",
        ]
    )
