"""AgentWorkflowOutput and what run() may return."""

from typing import Any

import pytest

from rollbook.sdk.output import AgentWorkflowOutput, coerce_output


def test_list_becomes_an_output() -> None:
    output = coerce_output([{"role": "user"}])
    assert output is not None
    assert output.messages == [{"role": "user"}]


def test_none_means_the_fallback_and_an_output_without_messages_does_not() -> None:
    assert coerce_output(None) is None
    output = coerce_output(AgentWorkflowOutput(messages=None))
    assert output is not None
    assert output.messages is None


@pytest.mark.parametrize("value", [42, "text", ({"role": "user"},), {"messages": []}])
def test_other_types_are_type_errors_that_name_the_choices(value: Any) -> None:
    with pytest.raises(TypeError, match="AgentWorkflowOutput, a list of messages, or None"):
        coerce_output(value)


def test_metrics_become_floats() -> None:
    metrics: dict[str, Any] = {"text": "1.5", "flag": True, "count": 3}
    assert AgentWorkflowOutput(metrics=metrics).metrics == {"text": 1.5, "flag": 1.0, "count": 3.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "abc", object()])
def test_metric_that_is_no_finite_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="turns"):
        AgentWorkflowOutput(metrics={"turns": value})


@pytest.mark.parametrize("fields", [{"messages": [1]}, {"messages": 5}, {"metrics": [1]}, {"metrics": {1: 1.0}}])
def test_bad_contents_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"messages|metrics"):
        AgentWorkflowOutput(**fields)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="reward"):
        AgentWorkflowOutput(reward=1.0)  # type: ignore[call-arg]


def test_output_changed_after_construction_is_checked_again() -> None:
    output = AgentWorkflowOutput(messages=[])
    output.metrics["late"] = float("nan")
    with pytest.raises(ValueError, match="late"):
        coerce_output(output)


def test_output_takes_no_message_of_the_caller_over() -> None:
    messages: list[dict[str, Any]] = [{"role": "user"}]
    output = AgentWorkflowOutput(messages=messages)
    messages[0]["role"] = "system"
    assert output.messages == [{"role": "user"}]
