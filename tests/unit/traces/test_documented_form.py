"""What docs/traces.md says of the form is so: its example is a trace, its sums are right, and no field is left out."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.traces import (
    CallError,
    CallTokens,
    ModelCall,
    Node,
    Rewrite,
    Sequence,
    Span,
    Trace,
    TraceError,
    TrainingRow,
    Usage,
    dumps,
    loads,
)
from rollbook.traces.matching import IGNORED_FIELDS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
DESCRIBED = set(re.findall(r"`(\w+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))


def test_example_is_a_trace_with_every_field_in_its_place() -> None:
    written: dict[str, Any] = json.loads(dumps(loads(EXAMPLE)))
    assert json.loads(EXAMPLE) == written
    assert list(json.loads(EXAMPLE)) == list(written)


def test_sums_of_the_example_are_those_that_the_page_computes() -> None:
    trace = loads(EXAMPLE)
    computed = re.search(r"= (\d+),\nthe output [\d +]+ = (\d+), the total [\d +]+ = (\d+)\.", PAGE)
    assert computed is not None
    sums = (trace.num_input_tokens, trace.num_output_tokens, trace.num_total_tokens)
    assert sums == tuple(int(number) for number in computed.groups())


@pytest.mark.parametrize(
    "struct",
    [CallError, CallTokens, ModelCall, Node, Rewrite, Sequence, Span, Trace, TraceError, TrainingRow, Usage],
)
def test_page_describes_every_field(struct: type[msgspec.Struct]) -> None:
    shown = {*DESCRIBED, *re.findall(r'"(\w+)":', EXAMPLE)} if struct is Span else DESCRIBED
    assert set(struct.__struct_fields__) - shown == set()


def test_page_names_every_field_that_comparing_messages_ignores() -> None:
    assert set() == IGNORED_FIELDS - DESCRIBED
