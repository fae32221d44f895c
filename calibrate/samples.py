"""What a sampler found out about a cost key, and how it enters a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulator.plan.task import Task
from traces.profile import KeyCost, Profile, Stats
from traces.profile_files import append_samples


@dataclass
class Samples:
    """One key's seconds by round: `cold_s` and `warm_s` on the device, `issue_s` on the host (GPU only).

    `grid`, `blocks_per_sm`: geometry of its longest kernel, `geometry_from` how that was learned.
    """

    task: Task
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)
    issue_s: list[float] = field(default_factory=list)
    grid: int | None = None
    blocks_per_sm: int | None = None
    geometry_from: str = ""


def store_samples(
    samples: Mapping[str, Samples], failures: Mapping[str, str], profile: Profile, rounds: Sequence[int] | None = None
) -> None:
    """Write each key's statistics over the given rounds (default: all), or why it could not be measured, into the profile.

    A key whose measuring was interrupted has no samples and is left out.
    """
    for key, found in samples.items():
        if key in failures:
            profile.failures[key] = failures[key]
            continue
        if not found.warm_s:
            continue
        chosen = range(len(found.warm_s)) if rounds is None else rounds
        work = found.task.body.work(found.task)
        profile.costs[key] = KeyCost(
            warm=Stats.of([found.warm_s[r] for r in chosen]),
            cold=Stats.of([found.cold_s[r] for r in chosen]),
            op_class=work.op_class,
            flops=work.flops,
            bytes=work.bytes,
            grid=found.grid,
            blocks_per_sm=found.blocks_per_sm,
            issue_s=Stats.of(found.issue_s).median_s if found.issue_s else None,
            geometry_from=found.geometry_from,
            launches=found.task.body.loop_length,
        )
        profile.failures.pop(key, None)


def save_samples(samples: Mapping[str, Samples] | None, profile: Profile, save_to: Path | None) -> None:
    """Save the profile, and every sample taken (None: not to be kept) in the file beside it; nothing without a place."""
    if save_to is not None:
        if samples is not None:
            append_samples(save_to, _raw(samples))
        profile.save(save_to)


def _raw(samples: Mapping[str, Samples]) -> list[dict]:
    return [
        {"key": key, "state": state, "samples_s": values}
        for key, found in samples.items()
        for state, values in (("cold", found.cold_s), ("warm", found.warm_s), ("issue", found.issue_s))
        if values
    ]
