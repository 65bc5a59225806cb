"""Configs: declared fields, conversion, defaults, extra fields, copies."""

import copy
from typing import ClassVar

import pytest

from rollbook.sdk.config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig


class Handler:
    """A type no decoder knows."""


class Tuned(AgentWorkflowConfig):
    temperature: float = 1.0
    stop_words: list[str] = ["\n"]  # noqa: RUF012  # a default value, copied for each config
    handler: Handler | None = None
    unit: ClassVar[str] = "tokens"


class Unresolvable(AgentWorkflowConfig):
    tool: "NoSuchType" = None  # type: ignore[name-defined]  # noqa: F821  # a name for type checkers only


class Demanding(GraderConfig):
    rubric: str


def test_config_takes_its_fields_by_keyword() -> None:
    config = AgentWorkflowConfig(name="x", concurrency=ConcurrencyConfig(max_concurrent=8))
    assert (config.name, config.description, config.concurrency.max_concurrent) == ("x", None, 8)


def test_concurrency_is_unbounded_by_default() -> None:
    assert AgentWorkflowConfig(name="x").concurrency.max_concurrent is None
    assert GraderConfig(name="x").concurrency.max_concurrent is None


def test_subclass_adds_fields_with_and_without_default() -> None:
    handler = Handler()
    config = Tuned(name="x", temperature=0.5, handler=handler)
    assert (config.temperature, config.stop_words, config.handler) == (0.5, ["\n"], handler)
    assert Demanding(name="g", rubric="be strict").rubric == "be strict"


def test_mutable_defaults_are_not_shared() -> None:
    first, second = Tuned(name="a"), Tuned(name="b")
    first.stop_words.append("END")
    first.concurrency.max_concurrent = 3
    assert second.stop_words == ["\n"]
    assert second.concurrency.max_concurrent is None


def test_missing_fields_are_named() -> None:
    with pytest.raises(ValueError, match="Demanding needs a value for: name, rubric"):
        Demanding()  # type: ignore[call-arg]  # what is tested


def test_values_convert_to_the_declared_type() -> None:
    config = Tuned(name="x", temperature="0.25", concurrency={"max_concurrent": "2"})  # type: ignore[arg-type]
    assert config.temperature == 0.25
    assert config.concurrency == ConcurrencyConfig(max_concurrent=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "warm"), ("name", 5), ("stop_words", 3), ("concurrency", 3), ("handler", "text")],
)
def test_value_of_another_type_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"Tuned.{field}"):
        Tuned(**{"name": "x", field: value})  # type: ignore[arg-type]


def test_undeclared_fields_become_attributes() -> None:
    config = BaseConfig(name="x", model="small")  # type: ignore[call-arg]  # declared nowhere, allowed all the same
    assert vars(config)["model"] == "small"


@pytest.mark.parametrize("bound", [0, -1, "many", 1.5])
def test_concurrency_below_one_or_no_number_is_refused(bound: object) -> None:
    with pytest.raises(ValueError, match="max_concurrent"):
        ConcurrencyConfig(max_concurrent=bound)  # type: ignore[arg-type]


def test_deep_copy_is_equal_and_independent() -> None:
    config = Tuned(name="x", extra=[1])  # type: ignore[call-arg]
    clone = copy.deepcopy(config)
    assert clone == config
    clone.stop_words.append("END")
    clone.concurrency.max_concurrent = 1
    vars(clone)["extra"].append(2)
    assert config == Tuned(name="x", extra=[1])  # type: ignore[call-arg]
    assert clone != config


def test_field_whose_type_is_known_to_type_checkers_only_is_taken_unchecked() -> None:
    assert Unresolvable(name="x", tool=5).tool == 5
    assert Unresolvable(name="x").tool is None


def test_repr_shows_the_values() -> None:
    assert repr(ConcurrencyConfig(max_concurrent=2)) == "ConcurrencyConfig(max_concurrent=2)"
