"""The settings of the processes, built once at the entry point and passed in."""

from __future__ import annotations

from typing import Literal

import msgspec

DATABASE_VARIABLE = "ROLLBOOK_DATABASE_URL"
"""The ledger's database, where the command line names none; it may hold a password."""
API_SETTINGS_VARIABLE = "ROLLBOOK_API_SETTINGS"
SCHEDULER_SETTINGS_VARIABLE = "ROLLBOOK_SCHEDULER_SETTINGS"
"""The environment variables that carry a child process's settings, as JSON."""
HINT_VARIABLE = "ROLLBOOK_HINT_FD"
"""The descriptor of a datagram socket to the other processes of the ledger."""
LOG_FORMAT_VARIABLE = "ROLLBOOK_LOG_FORMAT"
"""How the lines of logs look: `text`, or `json`."""
LISTEN_VARIABLE = "ROLLBOOK_LISTEN_FD"
"""The descriptor of a listening socket that outlives the API process."""


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One API process. ``queue`` is the queue that admissions go to.

    ``operator_api_key``, where it is set, opens the operator routes instead of ``api_key``.
    """

    database_url: str
    queue: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    operator_api_key: str | None = None
    result_wait_timeout_sec: float = 30.0
    polling_lease_timeout_sec: float = 120.0
    result_retention_sec: float | None = None
    max_queue_depth: int | None = None
    max_attempts: int = 3
    max_request_bytes: int = 32 * 1024 * 1024
    instance_id: str | None = None


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler process and its runners. Without a ``metrics_port`` it listens nowhere."""

    database_url: str
    entrypoint: str
    queues: tuple[str, ...]
    runners: int = 1
    max_concurrent: int | None = None
    on_shutdown: Literal["release", "cancel"] = "release"
    beat_interval_sec: float = 5.0
    dead_after_sec: float = 15.0
    beat_lost_after_sec: float = 10.0
    sweep_interval_sec: float = 0.5
    drain_sec: float = 10.0
    clean_up_sec: float = 120.0
    force_sec: float = 10.0
    stall_after_sec: float = 10.0
    runner_memory_bytes: int | None = None
    record_model_calls: bool = True
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
