"""The conversation that a program returned by itself, brought into the form that a trace can keep."""

from __future__ import annotations

import json
import logging
from typing import Any

from rollbook.backends.json_form import is_plain, plain
from rollbook.sdk.values import MessageDict, message_list, shown

__all__ = ["returned_messages"]

log = logging.getLogger(__name__)


def returned_messages(value: Any, *, rollout_id: str) -> list[MessageDict]:
    """The messages as JSON data; what has no JSON form is replaced by a text that shows it, with a warning.

    No messages are left where that is impossible: odd messages cost a rollout neither its end nor its reward.
    """
    try:
        messages = message_list(value, "messages")
        try:
            made: list[MessageDict] = plain(messages)
            if is_plain(made):
                return made
        except (TypeError, ValueError):
            log.debug("rollout %s: its messages have no JSON form", rollout_id, exc_info=True)
        log.warning("rollout %s returned messages with values that have no JSON form; the trace shows them", rollout_id)
        written = json.dumps(messages, default=shown, skipkeys=True)
        made = json.loads(written, parse_constant=str)
        is_plain(made)  # raises where they are nested too deeply
        return made
    except (TypeError, ValueError, RecursionError) as error:
        log.warning("rollout %s returned messages that no trace can keep: %s", rollout_id, error)
        return []
