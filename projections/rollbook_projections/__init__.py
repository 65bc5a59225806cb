"""What the ledger's events add up to: pure folds, the declared tables and the SQL views."""

from .evolve import FoldError, evolve
from .rows import HistoryRows, Row, add_history
from .state import Recorded, RolloutState
from .text import column_text

__all__ = [
    "FoldError",
    "HistoryRows",
    "Recorded",
    "RolloutState",
    "Row",
    "add_history",
    "column_text",
    "evolve",
]
