"""Checks that the partitions of a GPU are disjoint: no SM runs kernels of two partitions, either eagerly or in a graph's replay."""

import logging
from collections.abc import Sequence

from executors.cuda.driver import Driver, Partition
from traces.errors import StepcastError

log = logging.getLogger("stepcast")


def check_disjoint(driver: Driver, partitions: Sequence[Partition]) -> bool:
    """Run a probe kernel on every partition. Returns False, and logs a warning, if the kernel cannot be compiled.

    Raises StepcastError if two partitions share an SM, or if one uses more SMs than it has.
    """
    for replayed in (False, True):
        owner: dict[int, int] = {}
        for partition in partitions:
            try:
                sms = driver.sm_ids(driver.stream(partition=partition), replayed)
            except StepcastError as error:
                log.warning("the GPU's partitions could not be checked to be disjoint: %s", error)
                return False
            how = "in a graph" if replayed else "eagerly"
            if len(sms) > partition.sms:
                raise StepcastError(
                    f"partition {partition.index} has {partition.sms} SMs and ran on {len(sms)} {how}; leave --partition out"
                )
            for sm in sms:
                if owner.setdefault(sm, partition.index) != partition.index:
                    raise StepcastError(f"partitions {owner[sm]} and {partition.index} both ran on SM {sm} {how}; leave --partition out")
    return True
