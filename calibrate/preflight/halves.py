"""Whether the two halves of a GPU stay disjoint: launched eagerly, replayed one by one, and both in one graph."""

from collections.abc import Sequence

from calibrate.preflight.check import SUBSTITUTE, WRONG, Check, CheckContext, Finding
from executors.cuda.driver import Driver
from simulator.models.user_code import brief
from traces.errors import StepcastError


def _run(context: CheckContext) -> Finding:
    driver = context.driver
    try:
        halves = driver.partitions(2)
    except StepcastError as error:
        return Finding.of([(SUBSTITUTE, f"validate no plan on partitions: {error}")], "")
    context.figure("sms", [half.sms for half in halves])
    faults = []
    for how, seen in {"eagerly": _apart, "replayed": _replayed, "in one graph": _together}.items():
        try:
            sms = seen(driver, [driver.stream(partition=half) for half in halves])
        except Exception as error:
            context.figure(how, brief(error))
            faults.append((SUBSTITUTE, f"kernels of both halves {how} fail, so plans on partitions must not do so: {brief(error)}"))
            continue
        shared = len(frozenset.intersection(*sms))
        context.figure(how, {"sms_seen": [len(ids) for ids in sms], "shared": shared})
        if shared:
            faults.append((WRONG, f"halves of the GPU must be disjoint: {how}, both ran on {shared} SMs"))
        if any(len(ids) > half.sms for ids, half in zip(sms, halves, strict=True)):
            faults.append((WRONG, f"a half must keep to its SMs: {how}, kernels ran on {[len(ids) for ids in sms]} of {halves[0].sms}"))
    return Finding.of(faults, f"two halves of {halves[0].sms} SMs are disjoint, also in one graph")


def _apart(driver: Driver, streams: Sequence) -> list[frozenset[int]]:
    return [driver.sm_ids(stream) for stream in streams]


def _replayed(driver: Driver, streams: Sequence) -> list[frozenset[int]]:
    return [driver.sm_ids(stream, replayed=True) for stream in streams]


def _together(driver: Driver, streams: Sequence) -> list[frozenset[int]]:
    return driver.sm_ids_in_one_graph(streams)


CHECK = Check("halves", "Are the halves of the GPU disjoint, also in one graph?", 60.0, _run)
