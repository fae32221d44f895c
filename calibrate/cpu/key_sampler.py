"""Samples the keys of plans in the rounds of a validation, where each plan's turn comes when its program runs."""

from collections.abc import Collection, Sequence

from calibrate.cpu.sampler import KeyPairs
from calibrate.samples import store_samples
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.documents.profile import Profile


class KeySampler:
    """The samples of plans' keys. A plan's keys are compiled when they are first sampled, so that until then they take no memory."""

    def __init__(self, machine: Machine, sampler: KeyPairs):
        self._machine, self._sampler = machine, sampler
        self._keys: dict[int, tuple[Plan, tuple[str, ...]]] = {}  # by identity: plans are large, and not hashable

    def sample(self, plans: Sequence[Plan], number: int) -> None:
        """Take sample `number` of every key of `plans`: one cold and one warm, however many of the plans have the key."""
        keys = dict.fromkeys(key for plan in plans for key in self._keys_of(plan))
        self._sampler.sample(list(keys), number)

    def _keys_of(self, plan: Plan) -> tuple[str, ...]:
        if id(plan) not in self._keys:
            keys = plan.keys(self._machine)
            self._sampler.add(plan, keys)
            self._keys[id(plan)] = plan, tuple(key for key in keys if key in self._sampler.samples)
        return self._keys[id(plan)][1]

    def store(self, profile: Profile, numbers: Collection[int]) -> None:
        """Write each key's costs, computed from its samples with the given numbers, into the profile."""
        store_samples(self._sampler.samples, self._sampler.failures, profile, numbers)

    def relative(self, numbers: Collection[int]) -> dict[str, dict[int, float]]:
        """By key and number, the samples with the given numbers as multiples of the key's median (`Samples.relative`)."""
        wanted = frozenset(numbers)
        return {key: own for key, samples in self._sampler.samples.items() if (own := samples.relative(wanted))}
