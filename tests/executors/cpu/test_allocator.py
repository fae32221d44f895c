"""Counts of the allocator's bytes."""

import pytest

from executors.cpu import allocator

pytestmark = pytest.mark.skipif(allocator.allocated_bytes() is None, reason="this C library's allocator has no count of its bytes")


def free_chunks():
    return allocator._mallinfo2()().ordblks


def test_without_holes_there_are_few_chunks_to_count():
    kept = [bytearray(1100 + 17 * (i % 50)) for i in range(40_000)]
    del kept[::2]
    holes, before = free_chunks(), allocator.allocated_bytes()
    with allocator.without_holes():
        assert free_chunks() < holes / 4
    assert allocator.allocated_bytes() == pytest.approx(before, rel=0.01), "nothing stays held"
