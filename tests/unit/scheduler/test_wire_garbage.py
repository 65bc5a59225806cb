"""A pipe into which user code wrote something that is no message."""

from __future__ import annotations

import pytest

from rollbook.scheduler.wire import FramePipe, ToScheduler


def test_length_that_no_message_has_is_refused_instead_of_waited_for() -> None:
    pipe: FramePipe[ToScheduler] = FramePipe(ToScheduler, pytest.fail, lambda: None)  # type: ignore[arg-type]
    data = b"Hello, here is some output"
    pipe.get_buffer(len(data))[: len(data)] = data
    with pytest.raises(ValueError, match="no messages"):
        pipe.buffer_updated(len(data))
