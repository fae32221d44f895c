"""Quantities as people read them."""

import pytest

from traces import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0412, "41.2"), (1.2345, "1234"), (0.4123, "412.3"), (0.00412, "4.12"), (0.000412, "0.412"), (0.00001234, "0.0123"),
        (0.0, "0"), (None, "-"),
    ],
)  # fmt: skip
def test_ms(seconds, text):
    assert units.ms(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (16 * 2**30, "16 GiB"), (12_884_901_888, "12 GiB"), (12_340_000_000, "11.5 GiB"), (2**30 - 1, "1024 MiB"),
        (2_000_000, "1.91 MiB"), (400, "400 B"), (0, "0 B"), (None, "-"),
    ],
)  # fmt: skip
def test_a_card_of_16_gb_reads_16_gib(count, text):
    assert units.memory(count) == text


def test_one_unit_for_an_axis():
    assert units.memory_unit(3 * 2**30) == (2**30, "GiB")
    assert units.memory_digits(3 * 2**29, 2**30) == "1.50"


def test_units_and_nothing():
    assert units.difference(0.0) == "identical"
    assert units.difference(2.4e-7) == "2e-07"
    assert units.interval((0.039, 0.0415)) == "39.0 to 41.5"
    missing = [f(None) for f in (units.memory, units.difference, units.interval, units.percent, units.speedup, units.duration)]
    assert missing == ["-"] * 6


@pytest.mark.parametrize(
    ("share", "signed", "unsigned"),
    [
        (-0.019, "-1.9 %", "-1.9 %"), (0.0004, "0.0 %", "0.0 %"), (-0.0004, "0.0 %", "0.0 %"), (-0.0, "0.0 %", "0.0 %"),
        (1.0, "+100.0 %", "100.0 %"),
    ],
)  # fmt: skip
def test_zero_has_no_sign(share, signed, unsigned):
    assert units.percent(share) == signed
    assert units.percent(share, signed=False) == unsigned
    assert units.digits(-0.0) == "0"


def test_the_error_is_that_of_the_two_times():
    assert units.error(0.0412, 0.0420) == "-1.9 %"
    assert units.error(0.0420, 0.0420) == "0.0 %"
    assert units.error(None, 0.0420) == units.error(0.0412, None) == "-"


def test_speedups_with_intervals():
    assert units.speedup(1.157) == "1.16x"
    assert units.speedup(1.157, (1.08, 1.219)) == "1.16x (1.08 to 1.22)"
    assert units.factors(None) == "-"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.1, "10 seconds"), (44, "40 seconds"), (100, "2 minutes"), (3600, "60 minutes"), (9000, "2 hours")]
)
def test_a_time_to_wait(seconds, words):
    assert units.rough_time(seconds) == words


def test_numbers_in_texts():
    assert [units.read_integer(text) for text in ("12", " -3 ", "1.5", "", "9" * 5000, "0" * 5000)] == [12, -3, None, None, None, None]
    assert [units.read_integer(text, 1, 8) for text in ("0", "1", "8", "9")] == [None, 1, 8, None]
    assert [units.read_number(text) for text in ("1.5", "1e3", "nan", "inf", "1e999", "x")] == [1.5, 1000.0, None, None, None, None]
