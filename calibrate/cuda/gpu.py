"""All that belongs to a GPU and its host and not to an op, in one call."""

from collections.abc import Callable, Sequence

from executors.cuda.driver import Driver
from traces.errors import StepcastError
from traces.profile import Profile

from .bench import Bench, Effort, objects_kept
from .host import measure_host
from .rates import measure_rates
from .transfers import SIZES, measure_transfers

#: Numbers of parts whose sizes the profile keeps.
_SPLITS = (2, 4, 8)


def measure_gpu(
    driver: Driver,
    profile: Profile,
    empty_plan_s: Callable[[], float],
    precision: str = "fp32",
    device: str = "cuda:0",
    sizes: Sequence[int] = SIZES,
    effort: Effort | None = None,
) -> dict[str, float]:
    """Fill in the profile's dispatch, peak rates, memory, transfers of `sizes` bytes and partitions; takes a few seconds.

    The worst relative error of each transfer's line. `empty_plan_s` as in `measure_host`; dense kernels use `precision` afterwards.
    """
    bench = Bench(driver, effort=effort)
    with objects_kept():
        measure_host(bench, profile, empty_plan_s)
        measure_rates(bench, profile, precision)
        errors = measure_transfers(bench, profile, device, sizes)
    for count in _SPLITS:
        try:
            profile.partition_sms[str(count)] = driver.partitions(count)[0].sms
        except StepcastError as error:
            profile.notes = list(dict.fromkeys([*profile.notes, f"no {count} partitions: {error}"]))
    return errors
