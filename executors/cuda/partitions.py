"""Proof that partitions are what they are said to be: no SM runs kernels of two of them, neither eagerly nor in a graph."""

import logging
from collections.abc import Sequence

from executors.cuda.driver import Driver, Partition
from traces.errors import StepcastError

log = logging.getLogger("stepcast")


def prove_disjoint(driver: Driver, partitions: Sequence[Partition]) -> bool:
    """Ask kernels on every partition where they run. False, with a warning, where such kernels cannot be made.

    Raises StepcastError where two partitions share an SM, or one uses more SMs than it has.
    """
    for replayed in (False, True):
        owner: dict[int, int] = {}
        for partition in partitions:
            try:
                seen = driver.sm_ids(driver.stream(partition=partition), replayed)
            except StepcastError as error:
                log.warning("that partitions of the GPU are disjoint is not proved: %s", error)
                return False
            how = "in a graph" if replayed else "eagerly"
            if len(seen) > partition.sms:
                raise StepcastError(f"partition {partition.index} has {partition.sms} SMs and ran on {len(seen)} {how}; use --devices 1")
            for sm in seen:
                if owner.setdefault(sm, partition.index) != partition.index:
                    raise StepcastError(f"partitions {owner[sm]} and {partition.index} both ran on SM {sm} {how}; use --devices 1")
    return True
