"""The few configurations of a search that are worth knowing: the fastest, that with the least memory, and what lies between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.memory.contents import KIND_NAMES
from traces import units
from traces.documents.search_result import RankedPlan, SearchResult

FASTEST, BETWEEN, SMALLEST = "Fastest", "Less memory", "Least memory simulated"


@dataclass(frozen=True)
class Configuration:
    """A plan worth knowing, and why. `rate`: samples per second, or tokens per second of a model that reads tokens."""

    why: str
    plan: RankedPlan
    rate: float

    @property
    def memory_words(self) -> str:
        """What the fullest device holds at its peak, the largest kind first: activations 40 GiB, optimizer state 12 GiB."""
        kinds = sorted(self.plan.held_bytes.items(), key=lambda kind: -kind[1])
        return ", ".join(f"{KIND_NAMES.get(kind, kind)} {units.memory(size)}" for kind, size in kinds if size)


def frontier(plans: Sequence[RankedPlan]) -> list[RankedPlan]:
    """The plans that no other plan beats in both time and memory, the fastest first."""
    chosen: list[RankedPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.step_s, plan.peak_bytes)):
        if not chosen or plan.peak_bytes < chosen[-1].peak_bytes:
            chosen.append(plan)
    return chosen


def worth_knowing(result: SearchResult) -> list[Configuration]:
    """The fastest plan that fits, the one that needs the least memory, and the fastest that needs at most the memory half way between."""
    line = frontier(result.fitting)
    chosen = {FASTEST: line[0]} if line else {}
    if len(line) > 1:
        half = (line[0].peak_bytes + line[-1].peak_bytes) / 2
        between = next((plan for plan in line[1:-1] if plan.peak_bytes <= half), None)
        chosen |= ({BETWEEN: between} if between is not None else {}) | {SMALLEST: line[-1]}
    work = result.tokens or result.batch_size
    return [Configuration(why, plan, work / plan.step_s) for why, plan in chosen.items()]


def rate_words(result: SearchResult, configuration: Configuration) -> str:
    """The rate with its unit: 480,000 tokens/s."""
    rate = configuration.rate
    shown = f"{rate:,.0f}" if rate >= 1000 else units.digits(rate)
    return f"{shown} {'tokens' if result.tokens else 'samples'}/s"


def training_hours(result: SearchResult, configuration: Configuration, amount: float) -> float:
    """Hours that a training on so many tokens (samples, if the model reads no tokens) takes."""
    return amount / configuration.rate / 3600


def money_words(hours: float, devices: int, price: float) -> str:
    """What so many hours cost if an hour of one device has this price: 1,234 for 12.3 hours of 64 devices."""
    return f"${price * hours * devices:,.0f}"
