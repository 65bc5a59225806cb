"""The ways to a model server: TLS, proxies that the environment names, credentials in its URL, and uvloop."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rollbook.interception.endpoint import Endpoint
from tests.contract.interception.policies import Recording, ask
from tests.support.model_server import Die, ModelServer, Say

KEY = "sk-the-rollouts-own-key"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that signs itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "model server of a test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


class HttpProxy:
    """Passes on what it is asked for, by an absolute URL or by CONNECT, and remembers the request lines."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[str] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, headers = head.decode().partition("\r\n")
        self.asked.append(first)
        self.headers.append(headers)
        method, target, _ = first.split(" ")
        host, _, port = target.removeprefix("http://").partition("/")[0].partition(":")
        there, onward = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            onward.write(head.replace(f"http://{host}:{port}".encode(), b"", 1))
        await asyncio.gather(_pump(reader, onward), _pump(there, writer))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass  # one side closed; the other one hears of it by the close below
    finally:
        target.close()


async def test_server_with_tls_is_reached(
    endpoint: Endpoint,
    client: httpx.AsyncClient,
    certificate: Path,
    tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    policy = Recording()
    async with ModelServer(default=Say("in private"), tls=tls) as server:
        session = endpoint.open(server.url, KEY, policy)
        for streamed in (False, True):
            assert (await ask(client, session.base_url, streamed=streamed)).status_code == 200
        assert server.connections == 1
        await endpoint.close()
    assert [response.message["content"] for response in policy.responses] == ["in private"] * 2


async def test_stream_that_breaks_under_tls_is_broken(
    endpoint: Endpoint,
    client: httpx.AsyncClient,
    certificate: Path,
    tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    policy = Recording()
    async with ModelServer(Die(after=3), tls=tls) as server:
        session = endpoint.open(server.url, KEY, policy)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(client, session.base_url, streamed=True)
    assert policy.failure == "broken_stream"


async def test_server_whose_certificate_nobody_trusts_is_not_called(
    endpoint: Endpoint, client: httpx.AsyncClient, tls: ssl.SSLContext
) -> None:
    policy = Recording()
    async with ModelServer(Say(), tls=tls) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url)
        assert not server.received
    assert answer.status_code == 502
    assert policy.failure == "connect"


async def test_proxy_of_the_environment_is_used(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = HttpProxy()
    async with proxy.listening() as address, ModelServer(Say()) as server:
        monkeypatch.setenv("http_proxy", f"http://user:word@{address}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        answer = await ask(client, endpoint.open(server.url, KEY, Recording()).base_url)
        assert answer.status_code == 200
        assert server.received[0].path == "/v1/chat/completions"
        await endpoint.close()
    assert proxy.asked == [f"POST {server.url}/chat/completions HTTP/1.1"]
    assert "proxy-authorization: Basic dXNlcjp3b3Jk" in proxy.headers[0]


async def test_tls_goes_through_a_proxys_tunnel(
    endpoint: Endpoint,
    client: httpx.AsyncClient,
    certificate: Path,
    tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    proxy = HttpProxy()
    async with proxy.listening() as address, ModelServer(Say("through"), tls=tls) as server:
        monkeypatch.setenv("https_proxy", address)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        answer = await ask(client, endpoint.open(server.url, KEY, Recording()).base_url)
        assert answer.json()["choices"][0]["message"]["content"] == "through"
        await endpoint.close()
    assert proxy.asked == [f"CONNECT {server.url.removeprefix('https://').removesuffix('/v1')} HTTP/1.1"]
    assert KEY not in proxy.headers[0]


async def test_hosts_without_a_proxy_are_called_directly(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with ModelServer(Say()) as server:
        assert (await ask(client, endpoint.open(server.url, KEY, Recording()).base_url)).status_code == 200


async def test_proxy_of_another_kind_is_an_error_that_names_it(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with ModelServer() as server:
        answer = await ask(client, endpoint.open(server.url, KEY, Recording()).base_url)
    assert answer.status_code == 502
    assert "socks5" in answer.json()["error"]["message"]


async def test_credentials_of_the_url_are_sent_where_there_is_no_key(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    async with ModelServer(Say()) as server:
        url = server.url.replace("http://", "http://user:w%40rd@")
        await ask(client, endpoint.open(url, None, Recording()).base_url)
        headers = server.received[0].headers
    assert headers["authorization"] == "Basic dXNlcjp3QHJk"
    assert "@" not in headers["host"]


@pytest.mark.parametrize("streamed", [False, True])
def test_everything_works_on_uvloop_too(streamed: bool) -> None:
    async def scenario() -> None:
        endpoint = Endpoint()
        await endpoint.start()
        policy = Recording()
        try:
            async with ModelServer(default=Say("on uvloop")) as server, httpx.AsyncClient(trust_env=False) as client:
                session = endpoint.open(server.url, KEY, policy)
                answers = await asyncio.gather(
                    *(ask(client, session.base_url, f"{index}", streamed=streamed) for index in range(20))
                )
                assert [answer.status_code for answer in answers] == [200] * 20
                await session.close()
        finally:
            await endpoint.close()
        assert [response.message["content"] for response in policy.responses] == ["on uvloop"] * 20

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
