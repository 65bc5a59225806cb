"""A trace on its way to the ledger: written, compressed beside the event loop where it is large, and cut to fit."""

from __future__ import annotations

import base64
import logging
import zlib

from rollbook.tasks.threads import in_thread
from rollbook.traces.cutting import CUT, cuts
from rollbook.traces.storage import dumps
from rollbook.traces.trace import Trace
from rollbook_client.events import TraceSaved

__all__ = ["trace_saved"]

log = logging.getLogger(__name__)

COMPRESSION = 3
"""Of zlib: higher levels save a few per cent and take several times as long."""
PACKED_AT_ONCE_BYTES = 64 * 1024
"""Traces up to this take less than a few milliseconds; a thread would take longer on a busy machine."""
SAVED_MAX_BYTES = 60 * 1024 * 1024
"""Of a trace as an event has it: somewhat less than what one event may hold."""


async def trace_saved(trace: Trace) -> TraceSaved:
    """The event for a trace. One that takes more than an event may hold is cut: see `cuts`; its `info` says so."""
    written = dumps(trace)
    # Ten megabytes take more than half a second, and other rollouts wait for the model's answers meanwhile.
    large = len(written) > PACKED_AT_ONCE_BYTES
    return await in_thread(lambda: _fitting(trace, written)) if large else _event(trace, written)


def _fitting(trace: Trace, written: bytes) -> TraceSaved:
    event = _event(trace, written)
    size = len(event.data)
    if size <= SAVED_MAX_BYTES:
        return event
    for cut in cuts(trace, f"the whole trace takes {size} bytes in the ledger, and it may take {SAVED_MAX_BYTES}"):
        event = _event(trace, dumps(cut))
        if len(event.data) <= SAVED_MAX_BYTES:
            break
    log.error("rollout %s: its trace is saved %s", trace.rollout_id, cut.info[CUT])
    return event


def _event(trace: Trace, written: bytes) -> TraceSaved:
    packed = base64.b64encode(zlib.compress(written, COMPRESSION)).decode("ascii")
    return TraceSaved(attempt=0, version=trace.version, size_bytes=len(written), data=packed)
