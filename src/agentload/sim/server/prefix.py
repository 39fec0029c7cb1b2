"""Which prompts share which blocks: a radix tree over the words of prompts and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from agentload.sim.core.blocks import Node
from agentload.sim.server.tokens import BLOCK_BYTES, BYTES_PER_TOKEN

_LEAST_BYTES: Final = 1 << 22  # below this, dead branches are not worth a walk

Path = list[tuple[Node, int]]


class Branch:
    """A run of whole blocks below its parent, and the core's node that says which are cached."""

    __slots__ = ("branches", "label", "node")

    def __init__(self, label: bytes, node: Node) -> None:
        self.label = label
        self.node = node
        self.branches: dict[bytes, Branch] = {}  # by the first block of their labels


class PrefixTree:
    """Places prompts by their bytes; a prompt of 450 KB costs a few `memcmp`s.

    `split_node` is the engine's. One tree root per cache salt, since a salt is part of the first
    block's hash in vLLM. Branches that hold no cached block and no request are dropped when the
    labels outgrow twice what the cache can hold, so memory stays in proportion to the cache.
    """

    def __init__(self, split_node: Callable[[Node, int], Node], cache_blocks: int) -> None:
        self._split_node = split_node
        self._roots: dict[str | None, Branch] = {}
        self._limit = max(_LEAST_BYTES, 2 * cache_blocks * BLOCK_BYTES)
        self.label_bytes = 0

    def place(self, prompt: bytes, answer: bytes, salt: str | None = None) -> Path:
        """The path of a prompt for the core; the last entry is a node of this request alone.

        `answer`: the words the model will generate, so that a later prompt that repeats them finds
        them cached as far as they were generated.
        """
        if self.label_bytes > self._limit:
            self._prune()
        at = self._roots.get(salt)
        if at is None:
            at = self._roots[salt] = Branch(b"", Node())
        path: Path = []
        position, whole = 0, len(prompt) - len(prompt) % BLOCK_BYTES
        while position < whole:
            branch = at.branches.get(prompt[position : position + BLOCK_BYTES])
            if branch is None:
                break
            common = _common(prompt, position, whole, branch.label)
            if common < len(branch.label):
                self._split(branch, common)
            path.append((branch.node, common // BYTES_PER_TOKEN))
            position, at = position + common, branch
        leaf = Node()
        path.append((leaf, (len(prompt) - position) // BYTES_PER_TOKEN))
        self._grow(at, prompt[position:] + answer, leaf)
        return path

    def _grow(self, at: Branch, rest: bytes, leaf: Node) -> None:
        label = rest[: len(rest) - len(rest) % BLOCK_BYTES]
        if not label:
            return
        key = label[:BLOCK_BYTES]
        twin = at.branches.get(key)
        if twin is None or _is_dead(twin):
            if twin is not None:
                self._forget(twin)
            at.branches[key] = Branch(label, leaf)
            self.label_bytes += len(label)
        # Otherwise a request with the same prompt and answer is there first: vLLM, too, finds the
        # blocks that entered the cache first.

    def _split(self, branch: Branch, size: int) -> None:
        lower = Branch(branch.label[size:], self._split_node(branch.node, size // BLOCK_BYTES))
        lower.branches = branch.branches
        branch.label = branch.label[:size]
        branch.branches = {lower.label[:BLOCK_BYTES]: lower}

    def _prune(self) -> None:
        for salt, root in list(self._roots.items()):
            self._drop_dead(root)
            if not root.branches:
                del self._roots[salt]
        # What is left may be more than before if many requests are in flight: wait for as much
        # again before the next walk.
        self._limit = max(self._limit, 2 * self.label_bytes)

    def _drop_dead(self, root: Branch) -> None:
        """Children first: a branch goes when everything below it is gone."""
        for branch in reversed(list(_walk(root))):
            for key, child in list(branch.branches.items()):
                if not child.branches and child.node.idle:
                    del branch.branches[key]
                    self.label_bytes -= len(child.label)

    def _forget(self, branch: Branch) -> None:
        self.label_bytes -= sum(len(one.label) for one in _walk(branch))


def _is_dead(branch: Branch) -> bool:
    return not branch.branches and branch.node.idle


def _walk(root: Branch) -> Iterator[Branch]:
    """The branch and all below it, parents before children."""
    ahead = [root]
    while ahead:
        branch = ahead.pop()
        yield branch
        ahead.extend(branch.branches.values())


def _common(prompt: bytes, position: int, whole: int, label: bytes) -> int:
    """Bytes of whole blocks that the label and the prompt from `position` share; at least one."""
    room = min(len(label), whole - position)
    if room == len(label) and prompt.startswith(label, position):
        return room
    low, high = 1, room // BLOCK_BYTES  # `low` blocks are known to be equal
    while low < high:
        middle = (low + high + 1) // 2
        if prompt.startswith(label[: middle * BLOCK_BYTES], position):
            low = middle
        else:
            high = middle - 1
    return low * BLOCK_BYTES
