"""Blocking work of ours, beside the event loop and beside user code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["in_thread"]

# Of our own: user code may fill the event loop's with calls that take for ever, and an end must not wait for those.
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="rollbook-runtime")


async def in_thread[T](work: Callable[[], T]) -> T:
    """Do what blocks (files, /proc, compression) in a thread. Cancelling this leaves the thread to finish."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
