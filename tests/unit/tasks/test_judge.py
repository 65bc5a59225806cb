"""Judges, asked over real HTTP: what is sent, how answers are read, what is tried again, and what is recorded."""

import asyncio
import json
import math
import re
from typing import Any

import pytest

from rollbook.backends.errors import MachineError
from rollbook.tasks.data import TaskData
from rollbook.tasks.errors import JudgeError
from rollbook.tasks.judge import Judge
from rollbook.traces.calls import Usage
from rollbook.traces.trace import Trace
from tests.unit.tasks.support import PROMPT, REPLY, WAIT_SEC, Answer, grader, played, verdict

KEY = "sk-secret-of-the-judge"
DATA = TaskData(id="t-1", prompt="What is 6 times 7?", extra={"answer": "42"})
USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


def judge(**settings: Any) -> Judge:
    return Judge(
        **{
            "name": "style",
            "model": "grader",
            "rubric": "Is it right?",
            "base_url_env": "JUDGE_URL",
            "api_key_env": "JUDGE_KEY",
            "backoff_sec": 0.001,
            **settings,
        }
    )


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.delenv("JUDGE_URL", raising=False)


async def test_score_and_usage_of_a_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = played()
    async with grader(verdict('{"reason": "it is", "score": 0.75}', usage=USAGE)) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url + "/")
        assert await judge().score(DATA, trace) == 0.75
    [call] = trace.extra_usage
    assert (call.purpose, call.model, call.finish_reason, call.number) == ("judge:style", "grader-1", "stop", 1)
    assert call.usage == Usage(20, 5)
    assert call.error is None
    assert call.ended_at >= call.started_at > 0
    assert len(trace.calls) == 1  # the policy's own


async def test_model_is_asked_with_the_rubric_the_range_and_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "rubric": lambda data: f"The answer is {data.answer}.",
        "low": -1,
        "high": 10,
        "params": {"temperature": 0},
    }
    async with grader(verdict('{"score": 3}')) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        await judge(**settings).score(DATA, played())
    [request], [headers] = endpoint.requests, endpoint.headers
    assert headers["authorization"] == f"bearer {KEY}"
    assert (request["model"], request["temperature"]) == ("grader", 0)
    system, user = request["messages"]
    assert "The answer is 42." in system["content"]
    assert "between -1 (worst) and 10 (best)" in system["content"]
    assert json.loads(user["content"]) == [PROMPT, REPLY]


async def test_without_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    async with grader(verdict('{"score": 1}')) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        await judge().score(DATA, played())
    assert "authorization" not in endpoint.headers[0]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 0}', 0.0),
        (' {"score": 1.0, "reason": "x"}\n', 1.0),
        ('```json\n{"score": 0.5}\n```', 0.5),
        ('```\n{"score": 0.5}\n```', 0.5),
    ],
)
async def test_answer_in_the_form_that_was_asked_for_is_read(
    monkeypatch: pytest.MonkeyPatch, text: str, score: float
) -> None:
    async with grader(verdict(text)) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        assert await judge().score(DATA, played()) == score


@pytest.mark.parametrize(
    "text",
    [
        "0.5",
        "The score is 0.5",
        '{"score": "0.5"}',
        '{"score": true}',
        '{"score": null}',
        '{"score": NaN}',
        "{}",
        "",
        '{"score": 1.01}',
        '{"score": -0.1}',
        '[{"score": 1}]',
        'Sure: {"score": 1}',
        '{"score": 1e999}',
    ],
)
async def test_any_other_answer_is_no_score(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    trace = played()
    async with grader(verdict(text, usage=USAGE)) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        with pytest.raises(JudgeError, match=r"the judge style (did not answer|gave)") as raised:
            await judge().score(DATA, trace)
    assert raised.value.judge == "style"
    assert len(endpoint.requests) == 1
    [call] = trace.extra_usage
    assert (call.usage, call.model, call.finish_reason) == (Usage(20, 5), "grader-1", "stop")
    assert call.error is not None
    assert call.error.kind == "garbage"
    assert str(raised.value) == f"the judge style {call.error.message}"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_passing_trouble_is_tried_again_and_recorded(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    trace = played()
    busy = Answer(status, {"error": "busy"}, headers={"Retry-After": "0"})
    async with grader(busy, busy, verdict('{"score": 1}', usage=USAGE)) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        assert await judge().score(DATA, trace) == 1.0
    assert [call.number for call in trace.extra_usage] == [1, 2, 3]
    errors = [call.error and (call.error.kind, call.error.status) for call in trace.extra_usage]
    assert errors == [("http", status), ("http", status), None]


async def test_trouble_that_does_not_pass_ends_after_as_many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    async with grader(Answer(503, {"error": "down"})) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        with pytest.raises(JudgeError, match=r"HTTP 503: .*down.* \(tried 3 times\)"):
            await judge(tries=3).score(DATA, played())
    assert len(endpoint.requests) == 3


async def test_wait_that_would_outlast_the_deadline_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async with grader(Answer(429, {}, headers={"Retry-After": "60"})) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        async with asyncio.timeout(WAIT_SEC):
            with pytest.raises(JudgeError, match=r"HTTP 429: \{\} \(tried 1 times\)"):
                await judge(timeout_sec=30).score(DATA, played())


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_refusal_is_final_and_shows_neither_key_nor_url(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    trace = played()
    said = f"bad key {KEY} at /v1/echo/secretpath123/v1/chat/completions"
    async with grader(Answer(status, {"error": said})) as endpoint:
        monkeypatch.setenv("JUDGE_URL", f"{endpoint.url}/echo/secretpath123/v1")
        clean = r"bad key \[JUDGE_KEY\] at \[JUDGE_URL\]/chat/completions"
        with pytest.raises(JudgeError, match=rf"HTTP {status}: .*{clean}") as raised:
            await judge().score(DATA, trace)
    assert len(endpoint.requests) == 1
    shown = f"{raised.value} {trace}"
    assert KEY not in shown
    assert "secretpath123" not in shown


@pytest.mark.parametrize("body", [b"<html>", b"\xff", {}, {"choices": []}, [], {"choices": [{"message": None}]}])
async def test_answer_that_is_no_chat_completion_is_garbage(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    trace = played()
    async with grader(Answer(200, body)) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        with pytest.raises(JudgeError, match="answered with no chat completion"):
            await judge().score(DATA, trace)
    assert [call.error and call.error.kind for call in trace.extra_usage] == ["garbage"]


async def test_answer_without_text_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = played()
    async with grader(Answer(200, {"choices": [{"message": {"content": None}}]})) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        with pytest.raises(JudgeError, match="answered without text"):
            await judge().score(DATA, trace)
    assert [call.error and call.error.message for call in trace.extra_usage] == [
        "answered without text: None (NoneType)"
    ]


async def test_endpoint_that_hangs_is_given_up_and_the_call_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = played()
    async with grader(Answer(200, {}, hang=True)) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        with pytest.raises(JudgeError, match=r"the judge style gave no answer within 0.05 s"):
            await judge(timeout_sec=0.05).score(DATA, trace)
    assert {call.error and call.error.kind for call in trace.extra_usage} == {"timeout"}


async def test_cancelled_judgement_stays_one_and_its_call_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = played()
    async with grader(Answer(200, {}, hang=True)) as endpoint, asyncio.timeout(WAIT_SEC):
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        running = asyncio.create_task(judge().score(DATA, trace))
        await endpoint.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [call.error and call.error.kind for call in trace.extra_usage] == ["aborted"]


async def test_server_that_is_not_there_is_tried_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with grader(verdict('{"score": 1}')) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
    trace = played()
    with pytest.raises(JudgeError, match=r"could not be asked: ConnectError: Connection refused \(tried 2 times\)"):
        await judge(tries=2).score(DATA, trace)
    said = "could not be asked: ConnectError: Connection refused"
    errors = [call.error and (call.error.kind, call.error.message) for call in trace.extra_usage]
    assert errors == [("connect", said), ("connect", said)]


async def test_answer_that_cannot_be_unpacked_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Answer(200, {}, headers={"Content-Encoding": "gzip"})  # which it is not
    async with grader(short, verdict('{"score": 1}')) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        assert await judge().score(DATA, played()) == 1.0


async def test_endpoint_that_is_not_named_is_said_and_recorded() -> None:
    trace = played()
    with pytest.raises(JudgeError, match="has no endpoint; set JUDGE_URL"):
        await judge().score(DATA, trace)
    [call] = trace.extra_usage
    assert call.purpose == "judge:style"
    assert call.error is not None
    assert call.error.message.startswith("has no endpoint; set JUDGE_URL")


@pytest.mark.parametrize(
    ("named", "is_set", "missing"),
    [
        ({}, ["JUDGE_URL", "JUDGE_KEY"], None),
        ({}, ["JUDGE_URL"], "JUDGE_KEY"),
        ({}, ["JUDGE_KEY"], "JUDGE_URL"),
        ({"api_key_env": None}, ["JUDGE_URL"], None),  # a server may want no key
    ],
    ids=["both", "no key", "no URL", "no key wanted"],
)
def test_variables_that_a_judge_cannot_do_without_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, Any], is_set: list[str], missing: str | None
) -> None:
    for name in ("JUDGE_URL", "JUDGE_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in is_set:
        monkeypatch.setenv(name, "http://127.0.0.1:9/v1")
    if missing is None:
        judge(**named).check()
        return
    with pytest.raises(MachineError, match=f"the judge style needs {missing}, which is not set; set it to the "):
        judge(**named).check()


def test_judge_that_asks_in_its_own_way_needs_no_variables() -> None:
    class Own(Judge):
        async def score(self, data: Any, trace: Trace) -> float:
            return 1.0

    Own("style", "m", rubric="r", base_url_env="JUDGE_URL").check()


async def test_conversation_that_is_no_utf8_is_sent_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(rollout_id="r")
    trace.commit_prompt([{"role": "user", "content": "\ud800 half a pair"}])
    async with grader(verdict('{"score": 1}')) as endpoint:
        monkeypatch.setenv("JUDGE_URL", endpoint.url)
        assert await judge().score(DATA, trace) == 1.0
    assert json.loads(endpoint.requests[0]["messages"][1]["content"])[0]["content"] == "\ud800 half a pair"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"rubric": ""}, "a rubric"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(**settings)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("weight", math.nan, "weight must be a finite number; got nan"),
        ("weight", "2", "weight must be a finite number; got '2'"),
        ("low", None, "low must be a finite number; got None"),
        ("high", math.inf, "high must be a finite number; got inf"),
        ("high", 10**400, "high must be a finite number"),
        ("low", 1.0, "low must be below high; got 1.0 and 1.0"),
        ("timeout_sec", 0, "timeout_sec must be seconds above zero; got 0"),
        ("timeout_sec", None, "timeout_sec must be seconds above zero; got None"),
        ("timeout_sec", math.inf, "timeout_sec must be seconds above zero; got inf"),
        ("tries", 0, "tries must be a whole number from 1 on; got 0"),
        ("tries", 1.5, "tries must be a whole number from 1 on; got 1.5"),
        ("tries", True, "tries must be a whole number from 1 on; got True"),
        ("backoff_sec", -1, "backoff_sec must be a finite number from 0 on; got -1"),
        ("backoff_sec", math.nan, "backoff_sec must be a finite number from 0 on; got nan"),
        ("backoff_sec", "1", "backoff_sec must be a finite number from 0 on; got '1'"),
    ],
)
def test_number_that_cannot_be_meant_is_refused_with_its_field(field: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the judge style: {text}")):
        judge(**{field: value})
