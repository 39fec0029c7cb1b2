"""KV cache blocks, held as runs of neighbours instead of one by one.

A block with an identity is (node, index): the index-th block of a chain in the prefix tree, so
no token is hashed. Blocks that share one fate (same holders, neighbours in the free queue) form
one `Extent`; an extent is split when a request touches part of it and joined again when its parts
are freed together. Nothing here costs O(prompt length).
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from agentload.sim.core.request import Request

UNLIMITED = 1 << 60


class Node:
    """A chain of blocks below a parent in the prefix tree; its contents are the core's alone.

    Two prompts share blocks as far as their paths share nodes, in order. A node belongs to the
    engine whose requests use it.
    """

    __slots__ = ("decoding", "extents", "users")

    def __init__(self) -> None:
        self.extents: list[Extent] = []  # resident copies; several may cover one index
        self.users: dict[Request, None] = {}  # requests in flight whose path holds this node
        self.decoding: list[Request] = []  # those that may be generating blocks into it

    @property
    def idle(self) -> bool:
        """Nothing cached here and no request in flight: the caller may forget the node."""
        return not self.extents and not self.users

    @property
    def cached_blocks(self) -> int:
        """Blocks from the chain's start that a lookup would find now."""
        return sum(high - low for _, low, high in self.match(UNLIMITED))

    def match(self, limit: int) -> "Iterator[Piece]":
        """Cached pieces (extent, low, high) that cover the chain's first blocks, up to `limit`.

        Of several copies of a block the one that entered the cache first is taken, as vLLM does.
        """
        at = 0
        while at < limit:
            first: Extent | None = None
            for extent in self.extents:
                if extent.low <= at < extent.high and (first is None or extent.age < first.age):
                    first = extent
            if first is None:
                return
            end = min(first.high, limit)
            for extent in self.extents:
                if extent.age < first.age and at < extent.low < end:
                    end = extent.low
            yield first, at, end
            at = end

    def overlapped(self, low: int, high: int, besides: "tuple[Extent, ...]") -> bool:
        """Whether a copy other than `besides` covers part of [low, high)."""
        return any(e.low < high and e.high > low and e not in besides for e in self.extents)


class Extent:
    """Blocks [low, high) of a node with the same holders; when free, one place in the queue.

    `age` orders copies of one block by when they entered the cache. A free extent is reused from
    its high end. `node` is None for free blocks without identity (only in queues that keep the
    order in which those were freed).
    """

    __slots__ = ("after", "age", "before", "high", "holders", "low", "node")

    def __init__(self, node: Node | None, low: int, high: int, age: int) -> None:
        self.node = node
        self.low = low
        self.high = high
        self.age = age
        self.holders: dict[Request, None] = {}
        self.before: Extent = self
        self.after: Extent = self


Piece: TypeAlias = tuple[Extent, int, int]  # an extent, and the part of it that is meant


class BlockPool:
    """All blocks of one replica: free, held, cached; vLLM's free queue and hash map."""

    def __init__(self, usable_blocks: int, *, caching: bool, unhashed_first: bool) -> None:
        self.total = usable_blocks
        self.free = usable_blocks
        self.caching = caching
        self._blank = usable_blocks  # free blocks without identity at the front of the queue
        self._unhashed_first = unhashed_first or not caching
        self._queue = Extent(None, 0, 0, 0)  # ring sentinel; .after is reused next
        self._ages = 0

    # -- lookup ---------------------------------------------------------------------------------

    def lookup(self, request: Request, limit: int) -> list[Piece]:
        """Cached pieces covering the request's first blocks, at most `limit` of them."""
        pieces: list[Piece] = []
        left = limit
        for node, capacity in zip(request.nodes, request.capacities, strict=True):
            wanted = min(capacity, left)
            found = wanted
            for piece in node.match(wanted):
                pieces.append(piece)
                found -= piece[2] - piece[1]
            if found or not left:
                break
            left -= wanted
        return pieces

    # -- taking and giving back -----------------------------------------------------------------

    def hold(self, request: Request, pieces: Iterable[Piece]) -> None:
        """Let an admitted request hold the cached pieces its lookup found."""
        for extent, low, high in pieces:
            if low > extent.low:
                extent = self._split(extent, low)
            if high < extent.high:
                self._split(extent, high)
            if not extent.holders:
                self._unlink(extent)
                self.free -= high - low
            extent.holders[request] = None
            request.table.append(extent)
            request.hashed += high - low

    def take(self, count: int) -> None:
        """Hand out `count` free blocks, evicting cached ones in the order of the queue."""
        if not count:
            return
        self.free -= count
        if self._blank:
            blank = min(self._blank, count)
            self._blank -= blank
            count -= blank
        while count > 0:
            oldest = self._queue.after
            taken = min(oldest.high - oldest.low, count)
            oldest.high -= taken
            count -= taken
            if oldest.high == oldest.low:
                self._unlink(oldest)
                if oldest.node is not None:
                    oldest.node.extents.remove(oldest)

    def give_back_blank(self, count: int) -> None:
        """Free `count` blocks that never got an identity."""
        if not count:
            return
        self.free += count
        if self._unhashed_first:
            self._blank += count
            return
        last = self._queue.before
        if last.node is None and last is not self._queue:
            last.high += count
        else:
            self._append(Extent(None, 0, count, 0))

    def release(self, request: Request) -> None:
        """Free all blocks of a request, the end of its sequence first."""
        self.give_back_blank(request.unhashed)
        for extent in reversed(request.table):
            del extent.holders[request]
            if not extent.holders:
                self.free += extent.high - extent.low
                self._append_joining(extent)
        request.table.clear()
        request.hashed = 0
        request.unhashed = 0

    def reset(self) -> bool:
        """Forget every cached block; refused (False) while a block is held."""
        if self.free != self.total:
            return False
        extent = self._queue.after
        while extent is not self._queue:
            if extent.node is not None:
                extent.node.extents.clear()
            extent = extent.after
        self._queue.before = self._queue.after = self._queue
        self._blank = self.total
        return True

    # -- identity -------------------------------------------------------------------------------

    def identify(self, request: Request, count: int) -> None:
        """Enter the request's first `count` blocks into the cache, so that lookups find them."""
        if not self.caching or count <= request.hashed:
            return
        start = 0
        for node, capacity in zip(request.nodes, request.capacities, strict=True):
            end = min(start + capacity, count)
            if end > request.hashed:
                self._enter(request, node, request.hashed - start, end - start)
            start += capacity
            if start >= count:
                return

    def _enter(self, request: Request, node: Node, low: int, high: int) -> None:
        request.hashed += high - low
        request.unhashed -= high - low
        if request.table:
            last = request.table[-1]
            if (
                last.node is node
                and last.high == low
                and len(last.holders) == 1
                and not (len(node.extents) > 1 and node.overlapped(last.low, high, (last,)))
            ):
                last.high = high
                return
        self._ages += 1
        extent = Extent(node, low, high, self._ages)
        extent.holders[request] = None
        node.extents.append(extent)
        request.table.append(extent)

    def split_node(self, node: Node, blocks: int) -> Node:
        """Cut a chain after `blocks` blocks; the node keeps the front, the result is the rest."""
        lower = Node()
        for extent in list(node.extents):
            if extent.low < blocks < extent.high:
                self._split(extent, blocks)
        for extent in node.extents:
            if extent.low >= blocks:
                extent.node = lower
                extent.low -= blocks
                extent.high -= blocks
                lower.extents.append(extent)
        node.extents = [extent for extent in node.extents if extent.node is node]
        for request in list(node.users):
            at = request.nodes.index(node)
            if request.capacities[at] > blocks:
                rest = request.capacities[at] - blocks
                request.capacities[at : at + 1] = [blocks, rest]
                request.nodes.insert(at + 1, lower)
                lower.users[request] = None
        for request in node.decoding:
            if request.nodes[-1] is lower:
                lower.decoding.append(request)
                request.writes.append(lower)
        return lower

    # -- the free queue -------------------------------------------------------------------------

    def _split(self, extent: Extent, at: int) -> Extent:
        """Cut an extent before block `at`; returns the upper part, the lower keeps the object."""
        node = extent.node
        if node is None:
            raise AssertionError("a run without identity is never split")
        upper = Extent(node, at, extent.high, extent.age)
        extent.high = at
        node.extents.append(upper)
        upper.holders = dict(extent.holders)
        for request in extent.holders:
            request.table.insert(request.table.index(extent) + 1, upper)
        if not extent.holders:
            self._insert(upper, extent.before)
        return upper

    def _append_joining(self, extent: Extent) -> None:
        last, node = self._queue.before, extent.node
        if (
            last.node is node
            and node is not None
            and last.low == extent.high
            and not (
                len(node.extents) > 2 and node.overlapped(extent.low, last.high, (extent, last))
            )
        ):
            last.low = extent.low
            node.extents.remove(extent)
            return
        self._append(extent)

    def _append(self, extent: Extent) -> None:
        self._insert(extent, self._queue.before)

    @staticmethod
    def _insert(extent: Extent, before: Extent) -> None:
        extent.before, extent.after = before, before.after
        before.after.before = extent
        before.after = extent

    @staticmethod
    def _unlink(extent: Extent) -> None:
        extent.before.after = extent.after
        extent.after.before = extent.before
