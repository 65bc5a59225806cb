"""The example as a workflow author would use it: its rows, its workflow against the endpoint, its grader."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rollbook import ExecutionRequest, GraderContext, LocalBackend, RolloutContext, RolloutSample
from rollbook.backends.entrypoint import load_entrypoint
from rollbook.cli.demo.endpoint import ChatEndpoint
from rollbook.cli.demo.example import example_folder, read_rows
from rollbook.cli.failures import CommandError
from rollbook_client import RolloutErrorCategory, RolloutStatus

ROWS = read_rows(example_folder() / "rows.jsonl")


@pytest.fixture(scope="module")
def backend() -> LocalBackend:
    backend = load_entrypoint(str(example_folder() / "multiply.py"))
    assert isinstance(backend, LocalBackend)
    return backend


def test_there_are_ten_rows_with_the_true_products() -> None:
    assert len(ROWS) == 10
    for row in ROWS:
        left, right = row.question.split(" × ")
        assert int(row.ground_truth) == ast.literal_eval(left) * ast.literal_eval(right)
        assert [message["role"] for message in row.messages] == ["system", "user"]


def test_several_rollouts_run_at_a_time(backend: LocalBackend) -> None:
    assert backend.max_concurrent == 8


async def test_rollout_asks_the_endpoint_and_is_graded(backend: LocalBackend) -> None:
    endpoint = ChatEndpoint(seed=1)
    row = ROWS[0]
    request = ExecutionRequest(id="r-1", prompt=list(row.messages), label=row.ground_truth)
    async with endpoint.serving():
        with RolloutContext(endpoint.base_url("r-1"), endpoint.api_key, rollout_id="r-1"):
            outcome = await backend.execute(request)
    assert outcome.result.status is RolloutStatus.SUCCESS
    sample = outcome.result.sample
    assert sample is not None
    assert [message["role"] for message in sample.messages] == ["system", "user", "assistant"]
    right = sample.messages[-1]["content"].endswith(f"Answer: {row.ground_truth}")
    assert sample.reward == (1.0 if right else 0.0)
    assert sample.metrics["completion_tokens"] > 0


async def test_refused_key_fails_the_rollout_instead_of_rewarding_nothing(backend: LocalBackend) -> None:
    endpoint = ChatEndpoint(seed=1)
    async with endpoint.serving():
        with RolloutContext(endpoint.base_url("r-1"), "a wrong key", rollout_id="r-1"):
            outcome = await backend.execute(ExecutionRequest(id="r-1", prompt=list(ROWS[0].messages), label="56"))
    assert outcome.result.status is RolloutStatus.FAILURE
    assert outcome.result.err_category is RolloutErrorCategory.AGENT_ERROR
    assert "401" in str(outcome.result.err_message)


@pytest.mark.parametrize(
    "said, reward",
    [
        ("Answer: 56", 1.0),
        ("Answer: 65\nNo, wait.\nAnswer:  56", 1.0),
        ("Answer: 56\nAnswer: 65", 0.0),
        ("Answer: 560", 0.0),
        ("It is 56.", 0.0),
        ("", 0.0),
    ],
)
async def test_grader_wants_the_last_answer_to_match_exactly(backend: LocalBackend, said: str, reward: float) -> None:
    grader_class: Any = backend.grader_cls
    ctx = GraderContext("56", RolloutSample(messages=[{"role": "assistant", "content": said}]))
    await grader_class(None).grade(ctx)
    assert ctx.sample is not None
    assert ctx.sample.reward == reward


@pytest.mark.parametrize("line", ["{", "[]", '{"user_prompt": "What is 7 × 8?"}'])
def test_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    good = '{"system_prompt": "s", "user_prompt": "What is 7 × 8?", "ground_truth": "56"}'
    file.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(CommandError, match=r"rows\.jsonl, line 3: .*; correct the line"):
        read_rows(file)
