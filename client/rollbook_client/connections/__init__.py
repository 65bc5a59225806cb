"""HTTP connections that stay usable however their calls end: `base` is the contract, beside it who owns the sockets."""

from __future__ import annotations

from rollbook_client.connections.base import Connections
from rollbook_client.connections.borrowed import BorrowedConnections
from rollbook_client.connections.owned import OwnedConnections

__all__ = ["BorrowedConnections", "Connections", "OwnedConnections"]
