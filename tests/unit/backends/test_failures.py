"""What errors of user code become: categories and messages."""

import asyncio
from typing import Any

import pytest

from rollbook.backends.errors import MachineError
from rollbook.backends.failures import categorized, deadline_failure, failure_of
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.unit.backends.support import Context, make_backend, make_request


class SandboxConnectionException(Exception):
    """Named like a sandbox provider's."""


class SandboxRateLimitException(Exception):
    """Named like a sandbox provider's."""


class PoolStateStoreUnavailableException(Exception):
    """Named like a sandbox provider's."""


class SandboxApiException(Exception):
    """Named like a sandbox provider's."""

    def __init__(self, status_code: Any) -> None:
        super().__init__("api")
        self.status_code = status_code


class SandboxAPIError(SandboxApiException):
    """The other spelling."""


class Derived(SandboxConnectionException):
    """A subclass keeps its provider's category."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TimeoutError("slow"), RolloutErrorCategory.TIMEOUT),
        (ValueError("x"), RolloutErrorCategory.VALIDATION_ERROR),
        (TypeError("x"), RolloutErrorCategory.VALIDATION_ERROR),
        (AssertionError("x"), RolloutErrorCategory.VALIDATION_ERROR),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), RolloutErrorCategory.VALIDATION_ERROR),
        (SandboxConnectionException("x"), RolloutErrorCategory.HTTP_ERROR),
        (SandboxRateLimitException("x"), RolloutErrorCategory.HTTP_ERROR),
        (PoolStateStoreUnavailableException("x"), RolloutErrorCategory.HTTP_ERROR),
        (Derived("x"), RolloutErrorCategory.HTTP_ERROR),
        (SandboxApiException(404), RolloutErrorCategory.AGENT_ERROR),
        (SandboxApiException("503"), RolloutErrorCategory.AGENT_ERROR),
        (SandboxApiException([]), RolloutErrorCategory.AGENT_ERROR),
        (MachineError("x"), RolloutErrorCategory.INTERNAL_ERROR),
        (RuntimeError("x"), RolloutErrorCategory.AGENT_ERROR),
        (KeyError("x"), RolloutErrorCategory.AGENT_ERROR),
        (ConnectionError("x"), RolloutErrorCategory.AGENT_ERROR),
        (ExceptionGroup("g", [ValueError("x")]), RolloutErrorCategory.AGENT_ERROR),
    ],
    ids=repr,
)
def test_category_of_an_error(error: Exception, category: RolloutErrorCategory) -> None:
    assert categorized(error) is category


@pytest.mark.parametrize("status_code", [401, 402, 403, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("kind", [SandboxApiException, SandboxAPIError])
def test_providers_api_error_is_an_http_error_by_its_status(kind: type[SandboxApiException], status_code: int) -> None:
    assert categorized(kind(status_code)) is RolloutErrorCategory.HTTP_ERROR


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("chosen failure"), "chosen failure"),
        (KeyError("x"), "'x'"),
        (ValueError(), "workflow raised ValueError without a message; give it one that says what failed"),
        (TimeoutError(), "workflow raised TimeoutError without a message; give it one that says what failed"),
        (Speechless(), "Speechless, whose __str__ raised RuntimeError"),
        (
            ExceptionGroup("two tools failed", [ValueError("a"), KeyError()]),
            "two tools failed (2 sub-exceptions): ValueError(a); KeyError",
        ),
    ],
    ids=repr,
)
def test_message_of_an_error(error: Exception, message: str) -> None:
    assert failure_of(error, "workflow").message == message


def test_long_group_names_its_first_members() -> None:
    message = failure_of(ExceptionGroup("g", [ValueError(str(n)) for n in range(5)]), "workflow").message
    assert message.endswith("ValueError(0); ValueError(1); ValueError(2); and 2 more")


def test_deadline_message_names_queueing_from_a_tenth_of_a_second_on() -> None:
    assert deadline_failure("workflow", 0.3).message == "workflow exceeded its 0.3s deadline"
    assert deadline_failure("grader", 5).message == "grader exceeded its 5.0s deadline"
    assert "queue" not in deadline_failure("workflow", 1, queued_sec=0.09).message
    assert "0.2s of it queued" in deadline_failure("workflow", 1, queued_sec=0.2).message


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseExceptionGroup("g", [SystemExit(1)])],
    ids=repr,
)
@pytest.mark.parametrize("place", ["workflow", "grader"])
async def test_error_that_would_end_the_process_is_an_agent_error(error: BaseException, place: str) -> None:
    async def fail(ctx: Any) -> Any:
        raise error

    backend = make_backend(fail) if place == "workflow" else make_backend(grade=fail)
    result = (await backend.execute(make_request())).result
    assert result.status is RolloutStatus.FAILURE
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR
    assert "SystemExit" in (result.err_message or "") or type(error).__name__ in (result.err_message or "")


async def test_cancelled_error_of_the_users_own_is_an_agent_error() -> None:
    async def own(ctx: Context) -> Any:
        raise asyncio.CancelledError

    async def of_a_task(ctx: Context) -> Any:
        never = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(never.cancel)
        await never

    for run in (own, of_a_task):
        result = (await make_backend(run).execute(make_request())).result
        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is RolloutErrorCategory.AGENT_ERROR
        assert "CancelledError although nobody had cancelled" in (result.err_message or "")


async def test_no_user_error_keeps_a_slot() -> None:
    async def fail(ctx: Context) -> Any:
        raise SystemExit

    backend = make_backend(fail, max_concurrent=1)
    for _ in range(3):
        await backend.execute(make_request())
    assert backend.health()["concurrency"] == {"max_concurrent": 1, "queued": 0, "running": 0}


def test_a_memory_error_says_that_memory_ran_out_unless_the_author_says_more() -> None:
    failure = failure_of(MemoryError(), "workflow")
    assert failure.category == RolloutErrorCategory.AGENT_ERROR
    assert failure.message.startswith("workflow ran out of memory")
    assert failure_of(MemoryError("model too big"), "workflow").message == "model too big"
