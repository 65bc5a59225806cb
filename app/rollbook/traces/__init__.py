"""What a rollout's model calls add up to: messages, calls, scores, times. Pure data, no I/O and no clock."""

from rollbook.traces.calls import CallError, CallTokens, ModelCall, Usage

__all__ = ["CallError", "CallTokens", "ModelCall", "Usage"]
