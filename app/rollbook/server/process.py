"""One API process: it opens the ledger, serves until a signal, and ends in order.

On SIGTERM admissions are answered 503, parked polls and streams end, idle connections are closed, requests in
progress are finished, and the process leaves the ledger's members. It ends at once when its parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerError
from rollbook.ledger.schema import SchemaError
from rollbook.ledger.secrets import SecretKeyError
from rollbook.ledger.urls import DatabaseUrlError
from rollbook.settings import ApiSettings
from rollbook.tuning import allow_many_files, spare_the_collector

from .answers import error_answer
from .app import build_app
from .errors import ApiError
from .member import ApiMember
from .service import ApiService

log = logging.getLogger(__name__)

KEEP_ALIVE_SEC = 2160
"""Longer than load balancers keep an idle connection, so that it is never our end that closes under a request."""

MAX_HEAD_BYTES = 64 * 1024

LAST_REQUESTS_SEC = 10
"""How long requests in progress may take once polls and streams have ended, slow uploads above all."""

LOG_TEXT = "%(asctime)s api %(levelname)s %(name)s: %(message)s"
"""The log lines of an API in text; it shares its standard error with a scheduler, mostly."""

EXIT_FAILED = 1
EXIT_PARENT_GONE = 3
START_ERRORS = (DatabaseUrlError, SchemaError, SecretKeyError, LedgerError, OSError, ValueError)


class ApiProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but what is no request is refused like all else, with a JSON object, and heads are bounded.

    The parser gathers a request line, a header or a trailer until it ends, at a cost that grows with its square.
    """

    _head_bytes = 0
    _progressed = False

    def data_received(self, data: bytes) -> None:
        self._progressed = False
        super().data_received(data)
        # Whole chunks that ended no head and brought no body; the chunk in which a head begins may hold other things.
        self._head_bytes = 0 if self._progressed else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request's head is over {MAX_HEAD_BYTES} bytes; send shorter headers")

    def on_headers_complete(self) -> None:
        self._progressed = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progressed = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "these bytes are no valid HTTP request")

    def _refuse(self, status: int, detail: str) -> None:
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answering:
            body = error_answer(ApiError(status, detail)).body
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


class ApiServer(uvicorn.Server):
    """uvicorn's server with our order of ending."""

    def __init__(self, config: uvicorn.Config, service: ApiService) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order at the first signal, at once at the second; the process then exits 0, not by the signal."""
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        # Here and not only once the server's loop has noticed: a poll that is answered now ends its connection.
        self._service.stop_admissions()
        self._service.end_waits()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop_admissions()
        self._service.end_waits()
        await super().shutdown(sockets)


def run_api(
    settings: ApiSettings,
    *,
    listener: socket.socket | None = None,
    hint_socket: socket.socket | None = None,
    lifeline_fd: int | None = None,
) -> int:
    """Serve until a signal; the exit code.

    ``listener`` is a socket that listens already, instead of one of this process's own: whoever made it keeps it
    when this process dies, and the next process takes the connections that wait.

    ``hint_socket`` is a datagram socket to the other processes of the ledger, ``lifeline_fd`` the read end of a pipe
    that the parent holds open: when it closes, this process ends at once, whatever it is doing.
    """
    if lifeline_fd is not None:
        threading.Thread(target=_end_with_parent, args=(lifeline_fd,), name="lifeline", daemon=True).start()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    allow_many_files()  # each parked poll is one
    spare_the_collector()
    try:
        with (
            listener or listen(settings.host, settings.port) as bound,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(serve(settings, bound, hint_socket=hint_socket))
    except START_ERRORS as error:
        log.error("the API cannot serve: %s", error)
        return EXIT_FAILED
    return 0


async def serve(settings: ApiSettings, listener: socket.socket, *, hint_socket: socket.socket | None = None) -> None:
    """Serve on a bound socket until a signal.

    Raises:
        ValueError: a setting is out of range, or the database URL cannot be used.
        SchemaError, SecretKeyError, LedgerError: the ledger cannot be opened.
    """
    service = ApiService(None, settings)
    ledger = await Ledger.open(settings.database_url, hint_socket=hint_socket)
    try:
        member = ApiMember(
            ledger,
            lease_timeout_sec=settings.polling_lease_timeout_sec,
            accepting=lambda: service.accepting,
        )
        service.attach(ledger)
        service.loops["beat"] = lambda: member.trouble
        await member.start()
        try:
            config = uvicorn.Config(
                build_app(service),
                http=ApiProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SEC,
                timeout_graceful_shutdown=LAST_REQUESTS_SEC,
            )
            log.info("serving on http://%s:%d", *listener.getsockname()[:2])
            async with service.meters.running():
                await ApiServer(config, service).serve(sockets=[listener])
        finally:
            await member.stop()
    finally:
        await ledger.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening.

    Raises:
        OSError: the address cannot be used; the message says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --host or --port"
        ) from error
    return listener


def _end_with_parent(lifeline_fd: int) -> None:
    os.set_blocking(lifeline_fd, True)
    while os.read(lifeline_fd, 1):
        pass
    os._exit(EXIT_PARENT_GONE)
