"""The header by which a server knows an admission again: one key for each call, or one of the caller's."""

from uuid import UUID

import httpx
import pytest

from rollbook_client import IDEMPOTENCY_KEY_HEADER
from tests.unit.client import virtual_time
from tests.unit.client.scripted import CHAT_URL, ScriptedServer, admitted, full_queue, result


def keys(server: ScriptedServer) -> list[str]:
    return [seen.request.headers[IDEMPOTENCY_KEY_HEADER] for seen in server.seen if seen.request.method == "POST"]


def test_every_call_has_a_key_of_its_own() -> None:
    async def main() -> ScriptedServer:
        server = ScriptedServer(admitted(), admitted())
        for _ in range(2):
            await server.client().run_rollout_async([], CHAT_URL, "r1")
        return server

    one, other = keys(virtual_time.run(main()))
    assert one != other
    assert {UUID(one).version, UUID(other).version} == {7}


def test_all_tries_of_a_call_have_the_same_key() -> None:
    async def main() -> ScriptedServer:
        server = ScriptedServer(full_queue(), full_queue("3"), admitted())
        await server.client().run_rollout_async([], CHAT_URL, "r1")
        return server

    assert len(set(keys(virtual_time.run(main())))) == 1


def test_callers_key_goes_out_as_it_is() -> None:
    async def main() -> list[ScriptedServer]:
        servers = [ScriptedServer(admitted(), result("success")) for _ in range(2)]
        await servers[0].client().run_rollout_async([], CHAT_URL, "r1", idempotency_key="epoch-1/row-7")
        await servers[1].client().run_rollout([], CHAT_URL, "r1", idempotency_key="epoch-1/row-7")
        return servers

    assert [keys(server) for server in virtual_time.run(main())] == [["epoch-1/row-7"]] * 2


def test_broken_admission_without_a_key_of_the_callers_is_not_repeated() -> None:
    async def main() -> ScriptedServer:
        server = ScriptedServer(httpx.ReadError("gone"))
        with pytest.raises(httpx.ReadError):
            await server.client().run_rollout_async([], CHAT_URL, "r1")
        return server

    assert len(virtual_time.run(main()).seen) == 1


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 256, "a\n", "a\r\nX-Other: 1"])
def test_key_that_no_header_can_carry_is_refused_before_anything_is_sent(key: str) -> None:
    async def main() -> ScriptedServer:
        server = ScriptedServer()
        with pytest.raises(ValueError, match="idempotency key"):
            await server.client().run_rollout_async([], CHAT_URL, "r1", idempotency_key=key)
        return server

    assert virtual_time.run(main()).seen == []
