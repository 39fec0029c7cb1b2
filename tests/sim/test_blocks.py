"""Copies of a block, and which of them a lookup finds."""

from agentload.sim.core.blocks import Extent, Node


def test_the_older_copy_is_found_from_where_it_starts() -> None:
    node = Node()
    young, old = Extent(node, 0, 10, 5), Extent(node, 4, 12, 3)
    node.extents = [young, old]
    assert list(node.match(100)) == [(young, 0, 4), (old, 4, 12)]
    assert list(node.match(6)) == [(young, 0, 4), (old, 4, 6)]
    assert node.cached_blocks == 12


def test_a_lookup_ends_at_the_first_gap() -> None:
    node = Node()
    node.extents = [Extent(node, 5, 9, 1), Extent(node, 0, 4, 2)]
    assert node.cached_blocks == 4
    assert node.overlapped(3, 6, ())
    assert not node.overlapped(4, 5, ())
    assert not node.overlapped(0, 4, (node.extents[1],))
