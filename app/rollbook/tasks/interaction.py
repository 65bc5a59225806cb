"""Exchanges that a user drives turn by turn: a person, a function, or another agent. Their time costs no budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rollbook.sdk.values import MessageDict, shown
from rollbook.tasks.rollout import Rollout

__all__ = ["Interaction", "User", "alternate", "interact"]

type User = Callable[[list[MessageDict]], Awaitable[str | None]]
"""Given the conversation so far, says the user's next message; None ends the exchange."""


class Interaction:
    """The turns of an open rollout that was made with ``user=True``, or whose harness resumes.

    ::

        talk = Interaction(rollout)
        answer = await talk.turn("How many are there?")
        while not talk.over:
            answer = await talk.turn(reply_to(answer))
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self.over = False
        """Whether the rollout takes no further turn: it failed, was stopped, or brought no turn."""

    @property
    def messages(self) -> list[MessageDict]:
        """The conversation so far."""
        return self._rollout.messages

    async def turn(self, said: str | list[MessageDict] | None = None) -> str | None:
        """Say something, and return the text of the agent's last message; None where it answered nothing.

        Without anything said the agent starts from the task's prompt, or goes on by itself. Raises ``TypeError`` for
        what is neither text nor messages, before anything has changed.
        """
        new = [{"role": "user", "content": said}] if isinstance(said, str) else said
        turns = self._rollout.trace.num_turns
        self.over = not await self._rollout.step(new)
        return None if self._rollout.trace.num_turns == turns else _last_text(self.messages)


async def interact(rollout: Rollout, user: User) -> None:
    """Let `user` drive an open rollout until one of them has no more to say. A task with a prompt begins with it.

    Where `user` raises, or returns what is no text, the rollout has failed by that, and the error goes on to the
    caller.
    """
    talk = Interaction(rollout)
    if rollout.data.prompt is not None:
        await talk.turn()
    while not talk.over:
        try:
            said = await user(talk.messages)
            if said is not None and not isinstance(said, str):
                raise TypeError(f"the user returned {shown(said)}; have it return text, or None for the end")
        except Exception as error:
            rollout.break_off(error, who="the user")
            raise
        if said is None:
            return
        await talk.turn(said)


async def alternate(one: Rollout, other: Rollout, *, opening: str | None = None) -> None:
    """Let two open rollouts talk: what each answers is the other's user message, until one of them is over.

    `one` begins, with `opening` or with its task's prompt. While one runs, the other's budget stands still.
    """
    talks = (Interaction(one), Interaction(other))
    said = opening
    speaker = 0
    while not (talks[0].over or talks[1].over):
        answer = await talks[speaker].turn(said)
        if answer is None:
            return
        said, speaker = answer, 1 - speaker


def _last_text(messages: list[MessageDict]) -> str | None:
    for message in reversed(messages):
        if message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) else None
    return None
