"""Counts of the allocator's bytes, and what it keeps."""

import subprocess
import sys

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


FREED = """
import ctypes
from executors.cpu import allocator
allocator.prepare()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.free(libc.malloc(3 << 30))
print(allocator._mallinfo2()().keepcost)
"""


def test_no_step_is_so_large_that_its_memory_goes_back_to_the_system():
    """VGG-16 frees more than 2 GiB in a step. Given back, they would fault again in the next one, page by page."""
    kept = subprocess.run([sys.executable, "-c", FREED], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(kept) >= 3 << 30
