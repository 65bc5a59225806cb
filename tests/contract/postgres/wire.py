"""PostgreSQL's messages, as far as something that stands between a client and a server must tell them apart."""

from __future__ import annotations

import asyncio
import struct

import msgspec

SSL_REQUEST = 80_877_103
CANCEL_REQUEST = 80_877_102
LENGTH = struct.Struct("!I")


class Message(msgspec.Struct, frozen=True):
    """One message. Those that begin a connection have no kind."""

    kind: bytes
    body: bytes
    from_client: bool

    @property
    def raw(self) -> bytes:
        return self.kind + LENGTH.pack(len(self.body) + 4) + self.body

    @property
    def code(self) -> int:
        """What a message without a kind is: a version of the protocol, or a request of another sort."""
        code: int = LENGTH.unpack_from(self.body)[0]
        return code

    def asks(self, text: str) -> bool:
        """Whether it is this statement, sent as text."""
        return self.from_client and self.kind == b"Q" and self.body == text.encode() + b"\0"

    def begins(self, text: str) -> bool:
        """Whether it is a statement that begins so, sent as text or to be prepared."""
        if not self.from_client or self.kind not in (b"Q", b"P"):
            return False
        statement = self.body if self.kind == b"Q" else self.body.split(b"\0", 1)[1]
        return statement.startswith(text.encode())

    def tells(self, tag: str) -> bool:
        """Whether it says that a statement with this tag was carried out."""
        return not self.from_client and self.kind == b"C" and self.body == tag.encode() + b"\0"


async def first_message(reader: asyncio.StreamReader) -> Message:
    """The message that begins a client's connection.

    Raises:
        asyncio.IncompleteReadError: the connection ended before it was whole.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(4))
    return Message(b"", await reader.readexactly(length - 4), True)


async def next_message(reader: asyncio.StreamReader, *, from_client: bool) -> Message:
    """The next message of a connection that has begun.

    Raises:
        asyncio.IncompleteReadError: the connection ended before it was whole.
    """
    kind, length = struct.unpack("!cI", await reader.readexactly(5))
    return Message(kind, await reader.readexactly(length - 4), from_client)
