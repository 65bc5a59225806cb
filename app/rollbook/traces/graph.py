"""The messages of a rollout as a graph: what calls share is there once, and a rewritten history makes a branch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from rollbook.traces.matching import MessageDict, MessageKeys, plainly_same
from rollbook_client.jsons import copied


class Node(msgspec.Struct, frozen=True):
    """One message at its place in a conversation.

    `parent` is the node of the message before it, None for a first one. `sampled` says that the model wrote it, as
    the answer of call number `call`; what a client says the model wrote is not sampled.
    """

    parent: int | None
    message: MessageDict
    sampled: bool = False
    call: int | None = None


class MessageGraph:
    """Grows by prompts and answers. A node's number is its place in `nodes`; parents come before their children.

    `nodes` is taken as it is and appended to; messages are copied when they become nodes.
    """

    def __init__(self, nodes: list[Node] | None = None) -> None:
        self.nodes: list[Node] = [] if nodes is None else nodes
        self._keys = MessageKeys()
        self._children: dict[int | None, dict[Hashable, list[int]]] = {}
        self._calls: list[int | None] = []
        for number in range(len(self.nodes)):
            self._index(number)

    def add_prompt(self, messages: Sequence[MessageDict], /) -> int | None:
        """The node of a prompt's last message, None for an empty prompt.

        The prompt goes along the nodes whose messages equal its own as far as they reach (`MessageKeys` says what
        equal is), and new nodes follow from there.
        """
        depth, node = self._walk(messages)
        for message in messages[depth:]:
            node = self._add(Node(node, copied(message)))
        return node

    def add_answer(self, prompt: int | None, message: MessageDict, call: int) -> int:
        """The node of a sampled message: always a new one, for two samples are two answers, equal or not."""
        return self._add(Node(prompt, copied(message), sampled=True, call=call))

    def known(self, messages: Sequence[MessageDict], /) -> int:
        """How many of a prompt's first messages are nodes already; what follows is new. Adds nothing."""
        return self._walk(messages)[0]

    def leaves(self) -> list[int]:
        """The nodes that nothing follows, in the order in which they were added: the ends of the branches."""
        return [number for number in range(len(self.nodes)) if number not in self._children]

    def path(self, node: int | None, /) -> list[int]:
        """The nodes from the first message to `node`; none for None."""
        path: list[int] = []
        while node is not None:
            path.append(node)
            node = self.nodes[node].parent
        path.reverse()
        return path

    def call_at(self, node: int | None, /) -> int | None:
        """The number of the call that wrote `node`, or else of the last one that wrote a message before it."""
        return None if node is None else self._calls[node]

    def _walk(self, messages: Sequence[MessageDict]) -> tuple[int, int | None]:
        """How many of the messages lead along nodes, and where they end.

        Equal answers of one prompt make several ways, so all are followed; of the longest ones the way is taken that
        nobody has gone on from, and of those the youngest.
        """
        reached: list[int | None] = [None]
        depth = 0
        for message in messages:
            further = self._following(reached, message)
            if not further:
                break
            reached = further
            depth += 1
        if len(reached) == 1:
            return depth, reached[0]
        return depth, max((node for node in reached if node is not None), key=lambda n: (n not in self._children, n))

    def _following(self, reached: list[int | None], message: MessageDict) -> list[int | None]:
        """The nodes with this message that follow one of `reached`."""
        if len(reached) == 1:
            children = self._children.get(reached[0], {})
            if len(children) == 1:
                (nodes,) = children.values()
                if plainly_same(self.nodes[nodes[0]].message, message):
                    return [*nodes]
        key = self._keys.of(message)
        return [child for node in reached for child in self._children.get(node, {}).get(key, ())]

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        self._index(len(self.nodes) - 1)
        return len(self.nodes) - 1

    def _index(self, number: int) -> None:
        node = self.nodes[number]
        self._children.setdefault(node.parent, {}).setdefault(self._keys.of(node.message), []).append(number)
        self._calls.append(node.call if node.sampled else self.call_at(node.parent))
