"""What a rollout's model calls add up to: messages, calls, scores, times. Pure data, no I/O and no clock."""

from rollbook.traces.calls import CallError, CallTokens, ModelCall, Usage
from rollbook.traces.graph import MessageGraph, Node
from rollbook.traces.matching import MessageDict, MessageKeys
from rollbook.traces.sample import sample_messages
from rollbook.traces.storage import TraceFormatError, dumps, loads, pack, unpack
from rollbook.traces.sums import TokenSums, token_sums
from rollbook.traces.trace import Branch, Rewrite, Span, Trace, TraceError
from rollbook.traces.training import Sequence, TrainingRow, branch_sequences, training_lines, training_rows

__all__ = [
    "Branch",
    "CallError",
    "CallTokens",
    "MessageDict",
    "MessageGraph",
    "MessageKeys",
    "ModelCall",
    "Node",
    "Rewrite",
    "Sequence",
    "Span",
    "TokenSums",
    "Trace",
    "TraceError",
    "TraceFormatError",
    "TrainingRow",
    "Usage",
    "branch_sequences",
    "dumps",
    "loads",
    "pack",
    "sample_messages",
    "token_sums",
    "training_lines",
    "training_rows",
    "unpack",
]
