"""The events that a trace's parts are told to the ledger by."""

from __future__ import annotations

from rollbook.traces.calls import ModelCall
from rollbook_client.events import ModelCalled

__all__ = ["called"]


def called(call: ModelCall) -> ModelCalled:
    """The event for a call, with what questions in SQL are asked about; the messages are in the trace."""
    usage, error = call.usage, call.error
    return ModelCalled(
        attempt=0,
        call=call.number,
        model=call.model,
        started_at=call.started_at,
        ended_at=call.ended_at,
        first_chunk_at=call.first_chunk_at,
        streamed=call.streamed,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        cached_input_tokens=None if usage is None else usage.cached_input_tokens,
        finish_reason=call.finish_reason,
        error_kind=None if error is None else error.kind,
        error=None if error is None else error.message,
        purpose=call.purpose,
    )
