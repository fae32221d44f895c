"""What PyTorch's caching allocator reserves: its rounding, splitting and caching, request by request, and for plans."""

from dataclasses import replace

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.caching import BESIDE_BYTES, CachingAllocator, reserved_bytes
from simulator.machine.presets import load_machine
from simulator.plan.dependencies import dependencies_of
from simulator.plan.task import OPTIMIZER_STATE
from simulator.predict.forecast import forecast
from tests.support.small_plans import machine, mm, plan_of, sgd, value

MIB = 2**20


def reserved(*requests: float, allocator: CachingAllocator | None = None) -> list[int]:
    """MiB reserved after each request in MiB of one stream, none of which is released."""
    allocator = allocator or CachingAllocator()
    after = []
    for mib in requests:
        allocator.allocate(int(mib * MIB), 0)
        after.append(allocator.reserved_bytes // MIB)
    return after


def test_small_requests_share_segments_of_2_mib_and_larger_ones_segments_of_20():
    assert reserved(0.5, 1, 0.5, 0.25) == [2, 2, 2, 4]
    assert reserved(1.5, 9, 9, 9) == [20, 20, 20, 40]
    assert reserved(0.5, 1.5) == [2, 22], "no segment serves both"


def test_the_largest_have_segments_of_their_own_in_steps_of_2_mib():
    assert reserved(10, 11, 12.5) == [10, 22, 36]


def test_a_released_block_serves_the_next_request_of_its_stream_alone():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(32 * MIB, "compute"))
    allocator.allocate(32 * MIB, "gather")
    assert allocator.reserved_bytes == 64 * MIB
    allocator.allocate(30 * MIB, "compute")
    assert allocator.reserved_bytes == 64 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    for block in [allocator.allocate(size * MIB, 0) for size in (64, 16, 32)]:
        allocator.release(block)
    assert reserved(30, 16, 64, allocator=allocator) == [112, 112, 112]


def test_what_stays_in_a_split_block_makes_the_next_large_request_reserve_more():
    """This is fragmentation: 44 MiB are free beside 20 MiB that stay, and a request of 48 MiB needs a segment of its own."""
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(64 * MIB, 0))
    allocator.allocate(20 * MIB, 0)
    assert reserved(44, 48, allocator=allocator) == [64, 112]


def test_free_neighbors_become_one_block_again():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(60 * MIB, 0))
    parts = [allocator.allocate(20 * MIB, 0) for _ in range(3)]
    for block in (parts[0], parts[2], parts[1]):
        allocator.release(block)
    assert reserved(60, allocator=allocator) == [60]


def test_cached_segments_are_returned_before_the_limit_is_exceeded():
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    kept = allocator.allocate(40 * MIB, 0)
    allocator.release(allocator.allocate(50 * MIB, 1))
    assert reserved(60, allocator=allocator) == [100], "the 50 MiB of the other stream are returned"
    assert (allocator.highest_bytes, kept.size) == (100 * MIB, 40 * MIB)
    assert reserved(10, allocator=allocator) == [110], "nothing is left to return"


def training(width: int):
    """One product, and its update with a state as large as the weight; every tensor has `width` MiB."""
    rows = width * MIB // 4096
    x, w, y = value("x", (1024, 1024), "input"), value("w", (1024, rows), "parameter"), value("y", (1024, rows), "activation")
    state = replace(value("s", (1024, rows), OPTIMIZER_STATE))
    update = sgd("update", w, y)
    return plan_of([mm("product", x, w, y), replace(update, mutates=(*update.mutates, state.operand()))], [x, w, y, state])


def test_a_plan_reserves_what_its_tasks_hold_and_the_state_that_the_first_update_makes():
    plan, gpu = training(32), machine()
    assert reserved_bytes(plan, gpu, dependencies_of(plan, gpu)) == {"memory:0": (4 + 3 * 32) * MIB + 16 * MIB}


def test_a_plan_fits_if_the_allocator_finds_room_beside_what_is_not_pytorchs():
    plan, gpu = training(8192), load_machine("h100")
    needed = reserved_bytes(plan, gpu, dependencies_of(plan, gpu))[gpu.memories[0].name] + BESIDE_BYTES
    for spare, fits in ((0, True), (-1, False)):
        limited = gpu.with_memory_limit(needed + spare)
        result = forecast(plan, limited, CostModel(limited))
        assert (result.memories[0].needed_bytes, result.fits) == (needed, fits)
