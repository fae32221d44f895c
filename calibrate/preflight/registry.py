"""The checks in the order in which they run: those first whose answers are worth most."""

from calibrate.preflight import (
    attention,
    cadence,
    captures,
    cold_sets,
    events,
    halves,
    host_calls,
    keys,
    numerics,
    profiler,
    streams,
    updates,
    versions,
)
from calibrate.preflight.check import Check

#: The first one also says which GPU it is, and is made in every call.
CHECKS: tuple[Check, ...] = (
    versions.CHECK,
    streams.CHECK,
    events.CHECK,
    captures.CHECK,
    host_calls.CHECK,
    updates.CHECK,
    halves.CHECK,
    profiler.DETACHED,
    profiler.ATTACHED,
    cold_sets.CHECK,
    numerics.FP32,
    numerics.BF16,
    attention.CHECK,
    cadence.CHECK,
    keys.CHECK,
    numerics.NHWC,
)
