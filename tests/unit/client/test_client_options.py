"""What a client is made with: the key, the URL, whose HTTP client it uses."""

import httpx
import pytest

from rollbook_client import RolloutClient, RolloutProtocolError
from tests.unit.client import virtual_time
from tests.unit.client.scripted import CHAT_URL, URL, ScriptedServer, admitted, result

_IDLE = {"process_id": "p", "lifecycle": {"accepting_rollouts": True, "active_rollouts": 0}}


@pytest.mark.parametrize("api_key", ["s3cret", None])
def test_every_request_carries_the_key_if_there_is_one(api_key: str | None) -> None:
    async def main() -> None:
        server = ScriptedServer(
            admitted(),
            result("success"),
            httpx.Response(200, json={"dispositions": {}}),
            httpx.Response(200, json=_IDLE),
            httpx.Response(200, json=_IDLE),
        )
        client = server.client(api_key=api_key)
        await client.run_rollout([], CHAT_URL, "r1")
        await client.cancel_rollout("r1")
        await client.health()
        await client.wait_idle()
        assert len(server.seen) == 5
        expected = None if api_key is None else "Bearer s3cret"
        assert {seen.request.headers.get("Authorization") for seen in server.seen} == {expected}

    virtual_time.run(main())


@pytest.mark.parametrize("api_key", ["", " ", "\t\n", "schlüssel", "two\nlines"])
def test_a_key_that_is_blank_or_no_header_is_refused(api_key: str) -> None:
    with pytest.raises(ValueError, match="api_key"):
        RolloutClient(url=URL, api_key=api_key)


@pytest.mark.parametrize(
    "url", ["http://rollouts.test/prefix", "http://rollouts.test/prefix/", "http://rollouts.test/prefix//"]
)
def test_a_path_prefix_is_kept_and_a_trailing_slash_does_not_matter(url: str) -> None:
    async def main() -> None:
        server = ScriptedServer(admitted(), result("success"))
        await server.client(url=url).run_rollout([], CHAT_URL, "r1")
        assert [seen.request.url.path for seen in server.seen] == ["/prefix/rollout", "/prefix/rollout/r1/result"]

    virtual_time.run(main())


@pytest.mark.parametrize("status_code", [301, 302, 303, 307, 308])
def test_redirects_are_never_followed_even_by_a_client_that_would(status_code: int) -> None:
    async def main() -> None:
        redirect = httpx.Response(status_code, headers={"Location": "http://elsewhere.test/"})
        server = ScriptedServer(*[redirect] * 3, admitted(), redirect)
        http_client = httpx.AsyncClient(transport=httpx.MockTransport(server.handle), follow_redirects=True)
        client = RolloutClient(url=URL, http_client=http_client, api_key="s3cret")
        with pytest.raises(RolloutProtocolError, match="redirects are not followed"):
            await client.health()
        with pytest.raises(RolloutProtocolError):
            await client.cancel_rollout("r1")
        with pytest.raises(RolloutProtocolError):
            await client.run_rollout([], CHAT_URL, "r1")
        with pytest.raises(RolloutProtocolError):
            await client.run_rollout([], CHAT_URL, "r1")
        assert {seen.request.url.host for seen in server.seen} == {"rollouts.test"}

    virtual_time.run(main())


def test_a_client_that_was_passed_keeps_its_own_settings_and_stays_open() -> None:
    async def main() -> None:
        server = ScriptedServer(*[httpx.Response(200, json={})] * 2)
        http_client = httpx.AsyncClient(
            transport=httpx.MockTransport(server.handle), headers={"X-Team": "rl"}, timeout=httpx.Timeout(3.0)
        )
        async with RolloutClient(url=URL, http_client=http_client) as client:
            await client.health()
        assert server.seen[0].request.headers["X-Team"] == "rl"
        assert set(server.seen[0].request.extensions["timeout"].values()) == {3.0}
        assert not http_client.is_closed
        await http_client.get(URL)

    virtual_time.run(main())
