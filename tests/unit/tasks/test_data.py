"""TaskData: messages, extra fields, the JSON form and back, and values that do not fit."""

import copy
import logging
import math
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.tasks.data import NetworkPolicy, Resources, TaskData, Timeouts


class Sum(TaskData, frozen=True, kw_only=True):
    answer: int
    hints: tuple[str, ...] = ()


FULL = TaskData(
    id="t-1",
    name="six times seven",
    prompt=[{"role": "user", "content": "6*7?"}],
    system_prompt="Be brief.",
    timeouts=Timeouts(setup=1, agent=2.5, finalize=30, scoring=None),
    resources=Resources(cpus=0.5, memory_mb=512, disk_mb=64),
    network=NetworkPolicy(allow=("*.example.com", "10.0.0.1"), deny=("bad.example.com",)),
    extra={"answer": 42, "tags": ["x"]},
)


def test_text_prompt_becomes_the_users_message_after_the_system_prompt() -> None:
    data = TaskData(id="t", prompt="hello", system_prompt="Be brief.")
    assert data.messages() == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def test_message_prompt_is_taken_as_it_is() -> None:
    assert FULL.messages() == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6*7?"}]


def test_no_prompt_gives_no_message() -> None:
    assert TaskData(id="t").messages() == []
    assert TaskData(id="t", prompt=[]).prompt is None


def test_messages_are_each_callers_own() -> None:
    FULL.messages()[1]["content"] = "changed"
    assert FULL.messages()[1]["content"] == "6*7?"


def test_data_is_frozen_and_keeps_its_own_copy_of_what_it_was_made_of() -> None:
    prompt: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    extra = {"tags": ["x"]}
    data = TaskData(id="t", prompt=prompt, extra=extra)
    prompt[0]["content"] = "b"
    extra["tags"].append("y")
    assert (data.messages()[0]["content"], data.tags) == ("a", ["x"])
    with pytest.raises(AttributeError):
        data.id = "other"  # type: ignore[misc]  # what is tested


def test_extra_fields_are_attributes() -> None:
    assert (FULL.answer, FULL.tags) == (42, ["x"])
    assert not hasattr(FULL, "missing")
    with pytest.raises(AttributeError, match="TaskData has no field 'missing'; put it into extra"):
        _ = FULL.missing


def test_copies_and_pickles_are_equal() -> None:
    assert copy.copy(FULL) == copy.deepcopy(FULL) == pickle.loads(pickle.dumps(FULL)) == FULL


def test_json_form_is_flat_and_read_back_equal() -> None:
    form = FULL.to_json()
    assert form["answer"] == 42
    assert form["network"] == {"allow": ["*.example.com", "10.0.0.1"], "deny": ["bad.example.com"]}
    assert TaskData.from_json(msgspec.json.decode(msgspec.json.encode(form))) == FULL


def test_declared_field_of_a_subclass_is_read_back_and_is_extra_without_it() -> None:
    data = Sum(id="t", answer=42, hints=("six",), extra={"level": 1})
    form = data.to_json()
    assert Sum.from_json(form) == data
    assert TaskData.from_json(form).answer == 42


def test_extra_given_as_a_field_of_its_own_is_merged() -> None:
    assert TaskData.from_json({"id": "t", "extra": {"a": 1}, "b": 2}).extra == {"a": 1, "b": 2}


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from(["answer", "label", "metadata", "rows", "messages"])


@given(st.dictionaries(_names, _values, max_size=3), st.text(min_size=1, max_size=5))
def test_any_extra_fields_survive_the_json_form(extra: dict[str, Any], prompt: str) -> None:
    data = TaskData(id="t", prompt=prompt, extra=extra)
    assert TaskData.from_json(data.to_json()) == data
    assert data.extra == extra


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": ""}, "TaskData.id is empty"),
        ({"id": 3}, "TaskData.id"),
        ({"prompt": ""}, "TaskData.prompt is empty"),
        ({"prompt": 3}, "TaskData.prompt"),
        ({"prompt": [3]}, r"TaskData.prompt\[0\]"),
        ({"prompt": [{"content": "x"}]}, r"TaskData.prompt\[0\] has no role"),
        ({"prompt": [{"role": "user", "content": math.nan}]}, r"TaskData.prompt\[0\] has no JSON form"),
        ({"system_prompt": 3}, "TaskData.system_prompt"),
        ({"name": 3}, "TaskData.name"),
        ({"timeouts": {"agent": "soon"}}, "TaskData.timeouts.agent"),
        ({"timeouts": {"agent": math.inf}}, "timeouts.agent must be seconds above zero"),
        ({"timeouts": {"agnet": 1}}, "TaskData.timeouts: .*agnet"),
        ({"resources": {"cpus": 0}}, "resources.cpus must be a number above zero, or None"),
        ({"resources": {"memory_mb": 0.5}}, "TaskData.resources.memory_mb"),
        ({"network": {"allow": ["https://example.com"]}}, "network.allow has 'https://example.com'.*the host alone"),
        ({"network": {"deny": "example.com"}}, "TaskData.network.deny"),
        ({"level": math.inf}, r"TaskData.extra\['level'\] has no JSON form"),
        ({"level": object()}, r"TaskData.extra\['level'\] has no JSON form"),
    ],
)
def test_value_that_does_not_fit_is_refused_with_its_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskData.from_json({"id": "t", **fields})


@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, True, "5"])
@pytest.mark.parametrize("name", ["setup", "agent", "finalize", "scoring"])
def test_timeout_that_is_no_time_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"timeouts.{name} must be seconds above zero, or None for no limit; got "):
        Timeouts(**{name: value})


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "5"])
@pytest.mark.parametrize(("name", "kind"), [("cpus", "a number"), ("memory_mb", "a whole"), ("disk_mb", "a whole")])
def test_resource_that_is_no_amount_is_refused_with_its_name(name: str, kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"resources.{name} must be {kind} .*, or None for no limit; got "):
        Resources(**{name: value})


def test_missing_declared_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"Sum: .*answer"):
        Sum.from_json({"id": "t"})


def test_extra_field_with_the_name_of_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match="has 'prompt', which is a field already"):
        TaskData(id="t", extra={"prompt": "x"})


def test_parts_may_be_given_as_mappings() -> None:
    data = TaskData(id="t", timeouts={"agent": 5}, network={"allow": ["*"]})  # type: ignore[arg-type]  # rows have such
    assert (data.timeouts, data.network) == (Timeouts(agent=5), NetworkPolicy(allow=("*",)))


@pytest.mark.parametrize(
    ("allow", "deny", "host", "allowed"),
    [
        ((), (), "example.com", False),
        (("*",), (), "example.com", True),
        (("example.com",), (), "EXAMPLE.com", True),
        (("example.com",), (), "example.com.", True),
        (("example.com",), (), "api.example.com", False),
        (("*.example.com",), (), "api.example.com", True),
        (("*.example.com",), (), "a.b.example.com", True),
        (("*.example.com",), (), "example.com", False),
        (("*",), ("*.example.com",), "api.example.com", False),
        (("*",), ("*.example.com",), "other.net", True),
        (("::1", "10.0.0.1"), (), "::1", True),
    ],
)
def test_policy_allows_what_it_names_and_does_not_deny(
    allow: tuple[str, ...], deny: tuple[str, ...], host: str, *, allowed: bool
) -> None:
    assert NetworkPolicy(allow=allow, deny=deny).allows(host) is allowed


def test_policy_says_whether_it_is_about_all_hosts_or_none() -> None:
    assert NetworkPolicy().isolated
    assert NetworkPolicy(allow=("*",), deny=("*",)).isolated
    assert NetworkPolicy(allow=("*",)).unrestricted
    named = NetworkPolicy(allow=("*",), deny=("bad.example.com",))
    assert not named.isolated
    assert not named.unrestricted


def test_field_that_may_be_a_slip_is_kept_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Log(TaskData, frozen=True, kw_only=True):
        service: str

    rows = [Log.from_json({"id": f"log/{number}", "service": "db", "timeout": {"agent": 1}}) for number in range(2)]
    assert [row.extra for row in rows] == [{"timeout": {"agent": 1}}] * 2
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("the row 'log/0' has the field 'timeout', which Log does not declare")
    assert record.getMessage().endswith("if it is meant to be 'timeouts', write it so")


def test_field_of_a_rows_own_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Log(TaskData, frozen=True, kw_only=True):
        service: str

    Log.from_json({"id": "a", "ids": [1], "service": "db", "services": ["db"], "label": "x", "metadata": {}})
    assert not caplog.records
