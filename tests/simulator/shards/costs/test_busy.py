"""The part of a machine that is busy longest, for many sets of copies at once."""

import numpy as np
import pytest

from simulator.shards.costs.busy import Busiest, Part


def dense(parts, moved):
    """Seconds of bytes [..., source, ..., target] by every part in turn."""
    return np.max([np.einsum("sitj,ij->st", moved, p.byte_s) + np.einsum("sitj,ij->st", moved > 0, p.copy_s) for p in parts], axis=0)


def seconds(busiest, moved, back):
    return busiest.seconds(busiest.sums(moved), busiest.sums((moved > 0).astype(float)), back)


def drawn_part(draw, size):
    """Copies from some devices to some others; of a third of the parts, each takes a time of its own."""
    used = np.outer(draw.random(size) < 0.5, draw.random(size) < 0.7)
    kinds = draw.integers(1, 4, (size, size)) if draw.random() < 0.3 else draw.integers(1, 4)
    return Part(used * kinds * 1e-9, used * kinds * (draw.random() < 0.5) * 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_largest_time_of_any_part(seed):
    draw = np.random.default_rng(seed)
    size = int(draw.integers(2, 7))
    parts = [drawn_part(draw, size) for _ in range(draw.integers(1, 9))]
    busiest = Busiest(size, parts)
    moved = draw.integers(0, 3, (4, size, 3, size)) * 1e3
    moved[:, np.arange(size), :, np.arange(size)] = 0
    assert seconds(busiest, moved, back=False) == pytest.approx(dense(parts, moved), rel=1e-12)
    back = dense(parts, moved.transpose(2, 3, 0, 1)).T
    assert seconds(busiest, moved, back=True) == pytest.approx(back, rel=1e-12)
    if busiest.both_ways:
        assert back == pytest.approx(dense(parts, moved), rel=1e-12)
    assert (busiest.sums(moved).total == moved.sum(axis=(1, 3))).all()


def test_links_alike_in_both_directions_take_as_long_on_the_way_back():
    there = Part(np.array([[0, 1e-9, 1e-9], [0, 0, 0], [0, 0, 0]]), np.zeros((3, 3)))
    assert not Busiest(3, [there]).both_ways
    assert Busiest(3, [there, Part(there.byte_s.T, there.copy_s.T)]).both_ways


def test_a_part_that_another_one_covers_changes_nothing():
    slow, fast = (Part(np.full((2, 2), byte_s), np.zeros((2, 2))) for byte_s in (2e-9, 1e-9))
    moved = np.array([[0, 5.0], [3.0, 0]]).reshape(1, 2, 1, 2)
    assert seconds(Busiest(2, [fast, slow, fast]), moved, back=False).item() == pytest.approx(16e-9)


def test_without_links_nothing_takes_time():
    assert seconds(Busiest(2, []), np.ones((1, 2, 1, 2)), back=False).item() == 0
