"""What is the same for all candidates of a search, in a form that other processes can receive."""

import hashlib
import json
import pickle
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from simulator.model import graph as graphs
from simulator.model.graph import TrainingGraph
from simulator.model.job import GraphArguments, Job
from simulator.predict.forecast import Forecast, answer
from simulator.predict.search.variants import split, varied
from simulator.predict.target import Target
from traces.documents.measured_step import MeasuredStep, step_name
from traces.errors import Refusal

#: What of the packages decides an evaluation: everything that plans, costs and simulates. Part of a cached evaluation's key.
_CODE = Path(__file__).parents[2]


class GraphMissingError(Exception):
    """A candidate needs the graph of a batch that was not captured yet: `wanted` are the arguments of `Job.graph`."""

    def __init__(self, wanted: GraphArguments):
        super().__init__(wanted)
        self.wanted = wanted


@dataclass(frozen=True)
class CapturedJob(Job):
    """A job that only has the graphs it was given, so that the model's own code runs only in the process that began the search."""

    def _load_or_capture(self, batch: int, parts: int, fused_dropout: bool) -> TrainingGraph:
        raise GraphMissingError((batch, parts, fused_dropout))


@dataclass(frozen=True)
class Setup:
    """A job on a target. `shared`: the options of `--set`.

    `microbatches`: what `least` knows of the variants of the job, which all of them share. `search`: the name of the search, by which a
    process knows that it had the setup before, with fewer graphs.
    """

    job: Job
    target: Target
    shared: Mapping[str, str] = field(default_factory=dict)
    microbatches: dict = field(default_factory=dict, repr=False, compare=False)
    search: str = field(default="", repr=False, compare=False)

    def captured(self, wanted: Iterable[GraphArguments]) -> "Setup":
        """The same setup whose job has the graphs of `wanted` (arguments of `Job.graph`), and no others."""
        job = self.job.on(self.target.machine.devices[0].kind)
        shipped = CapturedJob(**{f.name: getattr(job, f.name) for f in fields(Job) if f.init})
        for arguments in wanted:
            shipped._captured[*arguments, job.autocast] = job.captured(*arguments)
        return replace(self, job=shipped, shared=dict(self.shared), microbatches={})

    def of(self, candidate: str) -> "tuple[str, Setup]":
        """The strategy's text of a candidate, and this setup with its variant of the job. Raises SchedcastError if there is none."""
        return split(candidate)[0], replace(self, job=varied(self.job, candidate))

    def answer(self, candidate: str) -> Forecast | Refusal:
        """The forecast of a candidate, or why there is none."""
        text, own = self.of(candidate)
        return answer(own.job, text, own.target, own.shared)

    @property
    def first(self) -> GraphArguments:
        """The graph that the baseline needs."""
        return self.job.microbatch, self.job.accumulate, False

    def packed(self) -> bytes:
        """The setup as bytes. They go to processes that this one trusts, never to a file."""
        return zlib.compress(pickle.dumps(self), 1)

    @property
    def digest(self) -> str:
        """A hash of everything that decides an evaluation but the candidate's text."""
        model = self.target.costs
        profile = model.profile
        costs = profile.model_dump_json() if profile is not None else ""
        content = (
            self.job.describe(),
            model_digest(self.job),
            self.target.machine,
            model.machine,
            costs,
            self.target.mode,
            sorted(self.shared.items()),
        )
        return hashlib.blake2b(f"{code_digest()} {content!r} {model.precision}".encode(), digest_size=16).hexdigest()

    def measured(self, strategy: str, options: Mapping[str, Any]) -> MeasuredStep | None:
        """What a validation measured of this job under a strategy, if the machine's profile has it."""
        target = self.target
        profile, name = target.costs.profile, measured_job(self.job, target.mode, len(target.machine.devices))
        return profile.steps.get(step_name(name, strategy, options)) if profile is not None and name else None


def model_digest(job: Job) -> str:
    """What the model is: the hash of a built-in model's code, or the content of a user's captured graph."""
    if (fingerprint := job.factory.fingerprint) is not None:
        return str(fingerprint)
    captured = json.dumps(graphs.dump(job.graph(job.microbatch, job.accumulate)))
    return hashlib.blake2b(captured.encode(), digest_size=16).hexdigest()


def measured_job(job: Job, mode: str, devices: int) -> str:
    """The text for a job in the names of measured steps; empty on several devices, since such a text does not describe links."""
    return f"{job.digest} {model_digest(job)} {mode}" if devices == 1 else ""


@lru_cache(maxsize=2)
def unpacked(packed: bytes) -> Setup:
    """The setup of `Setup.packed`: the one that this process had before of the same search, with what was derived from its graphs."""
    setup: Setup = pickle.loads(zlib.decompress(packed))
    known = _LATEST.setdefault(setup.search, setup)
    known.job._captured.update(setup.job._captured)
    _LATEST.clear()
    _LATEST[setup.search] = known
    return known


#: The setup of the latest search, by its name.
_LATEST: dict[str, Setup] = {}


@cache
def code_digest() -> str:
    """A hash of the simulator's source and tables."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path for path in _CODE.rglob("*") if path.suffix in (".py", ".json")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
