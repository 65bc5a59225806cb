"""Whatever a client sends, it is never answered with a 5xx, and the server goes on serving."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollbook_client.messages import RolloutInitRequest
from tests.contract.server.processes import ApiProcess, read_response, running
from tests.contract.server.support import admission_body


@pytest.fixture(scope="module")
def process(shared_ledger: str) -> Iterator[ApiProcess]:
    """One API for all requests; it must outlive them."""
    with running(
        shared_ledger, result_wait_timeout_sec=0.001, polling_lease_timeout_sec=60.0, max_request_bytes=20_000
    ) as api:
        yield api
        with api.connect() as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: api\r\n\r\n")
            assert read_response(connection)[0] == 200


def answer(process: ApiProcess, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with process.connect() as connection:
        connection.sendall(data)
        return read_response(connection)


def check(response: tuple[int, dict[str, str], bytes], *, has_body: bool = True) -> int:
    """Every answer but a success is a JSON object with a `detail`; none is a 5xx."""
    status, headers, body = response
    assert status < 500, body
    if status >= 400 and has_body:
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["detail"]
    return status


# A NUL or a line end would end the header or the request line: that is another request, not a stranger one.
_HEADER_VALUE = st.binary(max_size=60).map(lambda data: bytes(byte for byte in data if byte not in b"\x00\r\n"))
_SEGMENTS = st.sampled_from(
    [
        b"rollout",
        b"rollouts",
        b"events",
        b"health",
        b"schema",
        b"cancel",
        b"result",
        b"status",
        b"..",
        b"",
        b"%2F",
        b"%",
    ]
) | st.binary(max_size=12)
_TARGET_BYTES = set((string.ascii_letters + string.digits + string.punctuation).encode())
_TARGETS = st.lists(_SEGMENTS, max_size=5).map(
    lambda parts: b"/" + b"".join(bytes([b]) if b in _TARGET_BYTES else b"%%%02X" % b for b in b"/".join(parts))
)
_METHODS = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"QUERY"])
_HEADER_NAMES = st.sampled_from(
    [
        b"x-osmosis-rollout-lease",
        b"authorization",
        b"accept",
        b"cookie",
        b"content-type",
        b"last-event-id",
        b"x-forwarded-for",
        b"accept-encoding",
        b"range",
    ]
)


@given(
    method=_METHODS,
    target=_TARGETS,
    query=st.none() | st.binary(max_size=40).map(lambda data: data.hex("&").encode()),
    headers=st.lists(st.tuples(_HEADER_NAMES, _HEADER_VALUE), max_size=4),
    host=st.just(b"api") | _HEADER_VALUE,
    body=st.binary(max_size=200),
)
@example(method=b"GET", target=b"/rollout/%ED%A0%80/result", query=None, headers=[], host=b"api", body=b"")
@example(
    method=b"GET",
    target=b"/rollout/%00/result",
    query=None,
    headers=[(b"x-osmosis-rollout-lease", b"\xff\xfe")],
    host=b"api",
    body=b"",
)
def test_any_request_is_answered_below_500(
    process: ApiProcess,
    method: bytes,
    target: bytes,
    query: bytes | None,
    headers: list[tuple[bytes, bytes]],
    host: bytes,
    body: bytes,
) -> None:
    lines = [b"%s %s%s HTTP/1.1" % (method, target, b"" if query is None else b"?" + query), b"host: " + host]
    # Asked for as a stream, the events would go on for 25 seconds.
    lines += [name + b": " + value for name, value in headers if b"event-stream" not in value]
    lines += [b"content-length: %d" % len(body), b"", body]
    check(answer(process, b"\r\n".join(lines)))


@given(data=st.binary(min_size=1, max_size=300))
def test_any_bytes_get_an_answer_below_500_or_none(process: ApiProcess, data: bytes) -> None:
    with process.connect() as connection:
        connection.sendall(data + b"\r\n\r\n")
        connection.shutdown(1)
        received = connection.recv(65_536)
    assert not received.startswith(b"HTTP/1.1 5")


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.sampled_from(["\ud800", "\x00", 10**400, 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NAMES = (*msgspec.structs.asdict(RolloutInitRequest(**admission_body())), "surprise")
_FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(_NAMES, _JSON))


def post(path: bytes, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: api\r\ncontent-length: %d\r\n\r\n%s" % (path, len(body), body)


@given(fields=_FIELDS)
def test_any_admission_is_answered_below_500(process: ApiProcess, fields: dict[str, Any]) -> None:
    body = json.dumps({**admission_body("r-1"), **fields}).encode()
    assert check(answer(process, post(b"/rollout", body))) in (202, 400, 409, 413, 422)


@given(
    selector=st.fixed_dictionaries({}, optional=dict.fromkeys(("ids", "prefix", "all", "surprise"), _JSON))
    | _JSON
    | st.builds(lambda ids: {"ids": ids}, st.lists(st.text(st.characters(exclude_categories=()))))
)
def test_any_cancel_is_answered_below_500(process: ApiProcess, selector: Any) -> None:
    response = answer(process, post(b"/rollout/cancel", json.dumps(selector).encode()))
    assert check(response) in (200, 413, 422)


@example(after=2**31, limit=1, path=b"/rollout/r-1/events", name="after")
@given(
    after=st.integers() | st.text(max_size=20),
    limit=st.integers() | st.text(max_size=20),
    path=st.sampled_from([b"/rollouts", b"/events", b"/rollout/r-1/events"]),
    name=st.sampled_from(["after", "before", "prefix", "queue", "status"]),
)
def test_any_page_is_answered_below_500(
    process: ApiProcess, after: int | str, limit: int | str, path: bytes, name: str
) -> None:
    def escaped(value: int | str) -> bytes:
        return quote_from_bytes(str(value).encode("utf-8", "surrogatepass")).encode()

    target = path + b"?" + name.encode() + b"=" + escaped(after) + b"&limit=" + escaped(limit)
    check(answer(process, b"GET " + target + b" HTTP/1.1\r\nhost: api\r\n\r\n"))


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://api/health HTTP/1.1\r\nhost: api",
        b"GET * HTTP/1.1\r\nhost: api",
        b"OPTIONS * HTTP/1.1\r\nhost: api",
        b"CONNECT api:443 HTTP/1.1\r\nhost: api",
        b"GET /health HTTP/1.0",
        b"GET /health HTTP/1.1",
        b"GET /\xff HTTP/1.1\r\nhost: api",
        b"GET //rollout///r-1//result HTTP/1.1\r\nhost: api",
        b"GET /health?\xff HTTP/1.1\r\nhost: api",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: api",
        b"GET /health HTTP/1.1\r\nhost: api\r\nx: " + b"a" * 70_000,
        b"GET /health HTTP/1.1\r\nhost: <script>",
        b"GET /health HTTP/1.1\r\nhost: api\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x",
        b"GET /rollout/r-1/result HTTP/1.1\r\nhost: api\r\nconnection: upgrade\r\nupgrade: h2c",
        b"POST /rollout HTTP/1.1\r\nhost: api\r\ncontent-length: -1",
        b"POST /rollout HTTP/1.1\r\nhost: api\r\ncontent-length: 0\r\nexpect: 200-fine",
        b"POST /rollout HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n0",
        b"POST /rollout HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\nzz",
    ],
    ids=lambda head: repr(head[:60]),
)
def test_unusual_request_is_answered_below_500(process: ApiProcess, head: bytes) -> None:
    check(answer(process, head + b"\r\n\r\n"))


def test_pipelined_requests_are_answered_in_their_order(process: ApiProcess) -> None:
    with process.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: api\r\n\r\n" + b"GET /nothing HTTP/1.1\r\nhost: api\r\n\r\n")
        data = b""
        while b"Not Found" not in data:
            data += connection.recv(65_536)
    assert data.index(b"200 OK") < data.index(b"404 Not Found")
