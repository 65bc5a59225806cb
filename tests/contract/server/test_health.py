"""Health: the deployment's counts, the life cycle, the process's own troubles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.server.support import Api, serving


async def health(api: Api) -> Any:
    response = await api.http.get("/health")
    assert response.status_code == 200
    return response.json()


async def test_without_a_scheduler_it_says_so_and_still_counts_active_rollouts(api: Api) -> None:
    await api.admitted()
    body = await health(api)
    assert body["status"] == "no_scheduler"
    assert body["concurrency"] == {"max_concurrent": 0, "queued": 0, "running": 0}
    assert body["lifecycle"] == {"accepting_rollouts": True, "active_rollouts": 1}
    assert body["schedulers"] == []
    assert body["background"] == []


async def test_with_a_scheduler_it_tells_slots_and_counts(api: Api) -> None:
    await api.admitted("r-1")
    await api.claim()
    await api.admitted("r-2")
    body = await health(api)
    assert body["status"] == "ok"
    assert body["concurrency"] == {"max_concurrent": 4, "queued": 1, "running": 1}
    assert body["lifecycle"]["active_rollouts"] == 2
    (scheduler,) = body["schedulers"]
    assert scheduler["capacity"] == 4
    assert 0 <= scheduler["beat_age_sec"] < 15


async def test_rollout_is_active_until_its_attempt_is_over(api: Api) -> None:
    await api.admitted()
    await api.claim()
    await api.enter()
    assert (await health(api))["lifecycle"]["active_rollouts"] == 1
    await api.finish()
    assert (await health(api))["lifecycle"]["active_rollouts"] == 0


async def test_closed_admission_is_told(api: Api) -> None:
    api.service.stop_admissions()
    assert (await health(api))["lifecycle"]["accepting_rollouts"] is False


async def test_failing_loop_is_told_with_its_trouble(api: Api) -> None:
    api.service.loops["sweep"] = lambda: "disk full"
    assert (await health(api))["background"] == [{"loop": "sweep", "trouble": "disk full"}]


async def test_ids_default_to_a_fresh_one_per_process(database_url: str) -> None:
    async with serving(database_url) as first:
        one = await health(first)
    async with serving(database_url) as second:
        other = await health(second)
    assert one["instance_id"] == one["process_id"]
    assert one["process_id"] != other["process_id"]


async def test_ids_are_the_deployments_where_it_names_them(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_PROCESS_ID", "group-7")
    async with serving(database_url, instance_id="blue") as api:
        body = await health(api)
        assert (body["process_id"], body["instance_id"]) == ("group-7", "blue")
