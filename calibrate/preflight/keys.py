"""Whether calibration can measure every op of a small model that has many kinds of them, in several precisions and layouts."""

from dataclasses import replace
from typing import Any

from calibrate.cuda.sampler import CudaSampler
from calibrate.cuda.testbed import GpuTestbed
from calibrate.preflight.check import WRONG, Check, CheckContext, Finding
from calibrate.tiny_model import tiny_job, tiny_plan

_VARIANTS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"precision": "bf16"}, "tf32, nhwc": {"precision": "tf32", "layout": "nhwc"}}


def _run(context: CheckContext) -> Finding:
    driver, faults = context.driver, []
    machine = GpuTestbed(driver, effort=context.scale.effort).machine(None)
    measured: dict[str, int] = {}
    for name, fields in _VARIANTS.items():
        driver.set_precision(fields.get("precision", "fp32"))
        job = replace(tiny_job(), **fields)
        job.__dict__["factory"] = tiny_job().factory
        plan = tiny_plan(job, machine)
        sampler = CudaSampler(driver, effort=context.scale.effort)
        sampler.measure(plan, plan.keys(machine))
        measured[name] = len(sampler.samples) - len(sampler.failures)
        context.figure("measured", dict(measured))
        context.figure(f"failures, {name}", dict(sampler.failures))
        context.figure(f"notes, {name}", list(sampler.notes))
        for key, why in sampler.failures.items():
            faults.append((WRONG, f"calibration must measure {key.partition('|')[0]} ({name}): {why}"))
        faults += [(WRONG, f"ops must be captured in graphs ({name}): {note}") for note in sampler.notes]
    return Finding.of(faults, f"calibration measures all {sum(measured.values())} keys of a small model in {', '.join(_VARIANTS)}")


CHECK = Check("keys", "Can calibration measure every kind of op?", 90.0, _run)
