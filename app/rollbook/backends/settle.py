"""From an outcome to what is recorded and answered: the rules for results on the wire, as a pure function."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rollbook.backends.base import ExecutionOutcome
from rollbook.backends.json_form import encode_plain, fit, is_plain, plain
from rollbook.sdk.sample import RolloutSample
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

TrajectorySaved = Literal["messages", "own", "off"]
_ENDS = frozenset({RolloutStatus.SUCCESS, RolloutStatus.FAILURE, RolloutStatus.CANCELLED})


class SettledResult(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's result in its final form.

    `sample` is the JSON object of the wire (messages, label, reward, remove_sample, metrics, extra_fields), or None.
    With `reduced` it holds lone surrogates, kept as ASCII escapes, and must be answered reduced: no messages,
    metrics and extra_fields, and ``?`` for surrogates in the label. `reward` is null unless the rollout succeeded and
    the sample stays. `metrics` are the sample's numeric ones. `trajectory` is the JSON list of the trajectory
    messages where they are the sample's "own"; `trajectory_saved` says where else to find them.
    """

    status: RolloutStatus
    sample: bytes | None = None
    reduced: bool = False
    reward: float | None = None
    metrics: dict[str, float | None] = {}
    trajectory: bytes | None = None
    trajectory_saved: TrajectorySaved = "off"
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    warnings: tuple[str, ...] = ()


def settle(outcome: ExecutionOutcome) -> SettledResult:
    """Settle an outcome. Never raises because of what user code left in it, and no payload costs a reward."""
    result = outcome.result
    status, message, category = result.status, result.err_message, result.err_category
    if status not in _ENDS:
        message = f"the backend ended with status {str(status)!r}; execute() must end with success or failure"
        status, category = RolloutStatus.FAILURE, RolloutErrorCategory.INTERNAL_ERROR
    if message is not None and not message.isascii():
        message = message.encode("utf-8", "replace").decode()  # a message must fit every pipe and answer
    sample = result.sample
    if sample is None:
        return SettledResult(status=status, err_message=message, err_category=category)

    reward = sample.reward if status is RolloutStatus.SUCCESS and not sample.remove_sample else None
    warnings: list[str] = []
    body = _encode_sample(sample, reward, warnings)
    trajectory, saved = _encode_trajectory(sample, warnings, messages_kept=body.whole)
    return SettledResult(
        status=status,
        sample=body.data,
        reduced=body.surrogates,
        reward=reward,
        metrics=body.metrics,
        trajectory=trajectory,
        trajectory_saved=saved,
        err_message=message,
        err_category=category,
        warnings=tuple(warnings),
    )


class _Body(msgspec.Struct):
    """An encoded sample: whether it has all of its messages, and whether it has surrogates."""

    data: bytes
    whole: bool
    surrogates: bool
    metrics: dict[str, float | None]


def _encode_sample(sample: RolloutSample, reward: float | None, warnings: list[str]) -> _Body:
    fields: dict[str, Any] = {
        "messages": sample.messages,
        "label": sample.label,
        "reward": reward,
        "remove_sample": sample.remove_sample,
        "metrics": sample.metrics,
        "extra_fields": sample.extra_fields,
    }
    dropped: set[str] = set()
    numeric: dict[str, float | None] = {}
    try:
        if sample.metrics or sample.extra_fields:
            fields["metrics"] = fit(sample.metrics, dropped)
            fields["extra_fields"] = fit(sample.extra_fields, dropped)
            numeric = _numeric(fields["metrics"])
        data, surrogates = _encode(fields)
    except Exception as error:  # objects bring hooks of their own, which may raise anything
        warnings.append(
            f"the sample has no JSON form and is answered without messages, metrics and extra_fields "
            f"({type(error).__name__}); keep messages to strings, finite numbers, lists and dicts"
        )
        data, surrogates = encode_plain({**fields, "messages": [], "metrics": {}, "extra_fields": {}})
        return _Body(data, whole=False, surrogates=surrogates, metrics=numeric)
    if dropped:
        warnings.append(
            f"values with no JSON form were dropped from metrics or extra_fields: {', '.join(sorted(dropped))}"
        )
    return _Body(data, whole=True, surrogates=surrogates, metrics=numeric)


def _encode(value: Any) -> tuple[bytes, bool]:
    """Encode data of user code: at once if it is plain, else after making it so."""
    try:
        encoded = encode_plain(value)
    except RecursionError:  # too deep or a cycle: nothing to be made plain
        raise
    except Exception:  # an object somewhere, perhaps one with a JSON form
        return encode_plain(plain(value))
    # Encoding first also proves that there is no cycle to get lost in.
    return encoded if is_plain(value) else encode_plain(plain(value))


def _encode_trajectory(
    sample: RolloutSample, warnings: list[str], *, messages_kept: bool
) -> tuple[bytes | None, TrajectorySaved]:
    own = sample.trajectory_messages
    if own is None:
        return None, "off"
    try:
        if messages_kept and own == sample.messages:
            return None, "messages"
        return _encode(own)[0], "own"
    except Exception as error:  # comparing runs user objects' __eq__, which may raise anything
        warnings.append(f"the trajectory messages have no JSON form and are not saved ({type(error).__name__})")
        return None, "off"


def _numeric(metrics: dict[str, Any]) -> dict[str, float | None]:
    """The metrics that are numbers or null, as finite floats; their names lose lone surrogates."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        key = name if name.isascii() else name.encode("utf-8", "replace").decode()
        if value is None:
            found[key] = None
        elif isinstance(value, (int, float)):
            try:
                found[key] = float(value)
            except OverflowError:  # an integer beyond a float's range is in the sample only
                continue
    return found
