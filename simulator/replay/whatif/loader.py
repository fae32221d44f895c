"""The rule loader: a faster data loader, or one with worker processes.

With workers, the main thread no longer loads. For each batch it takes one from a queue, which takes additional time, measured on two
pairs of traces (V100, ResNet-50, batches of 19.3 MB, pageable memory, 0 and 4 workers; PyTorch 2020 and 2021, two hosts):

- `HAND_OVER_S`: the queue and the tensor's new mapping, 0.1 to 1.9 ms, in the mean 1.1 on the one host and 0.9 on the other;
- `UNMAP_S_PER_BYTE`: a batch in shared memory is unmapped when the next one takes its place: 2.3 and 2.1 ms for 19.3 MB;
- `TOUCH_S_PER_BYTE`: the copy to the device touches each page of shared memory first: 2.1 to 3.3 ms, and 2.3 to 3.6 ms. The copy itself
  blocks the host until the device comes to it, as in any replay: where the device is the slower of the two, most of a long
  `cudaMemcpyAsync` is this wait, not the copy;
- `CONTENTION`: everything else that the host does takes longer while the workers run: by 2.1 and 4.6 %.

Pinned memory is copied by a separate thread, and needs neither of the two costs per byte. The constants are the means of both
pairs. With those of one pair alone, the step of the other is predicted as 120.7 ms (117.0 measured) and 170.3 ms (174.2 measured): see
`tests/simulator/replay/whatif/test_loader.py`. The interval goes from none of these costs to twice as much.

N workers deliver a batch per recorded loading time / N, at most `AHEAD` batches per worker ahead. A worker computes with one thread: if
loading used several in the main process, a worker is slower than that, which no recording without workers shows. It is the case in NERSC's
3-D U-Net (A100, batches of 64; 84.4, 144.2, 199.5 and 209.6 samples/s with 0, 4, 8 and 16 workers, 577 with DALI): 758 ms without workers
are 647 ms of loading before 111 ms, so that 4 workers would leave 162 ms and more; measured are 444. If a worker is 2.7 times as slow as
the main process (fitted on 4 workers) and the hand-over of a batch takes 194 ms (fitted on 16), 8 workers give 305 ms (321 measured).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

from simulator.plan.bodies.host import Host
from simulator.plan.task import Task
from simulator.replay.nodes import GAP, HOST
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work, host_work, with_durations, with_tasks
from simulator.replay.whatif.matching import MalformedError, speed, speed_words
from traces import units
from traces.documents.replay_result import Part
from traces.documents.timeline import Span
from traces.errors import SchedcastError
from traces.formats.recording import MEMCPY, is_loading

NAME = "loader"
FORM = "loader workers=4|2x faster|free"
ABOUT = "worker processes load the batches ahead; or loading is faster, slower or free, which is a bound"
BUILT = {"loader workers=4": "4 worker processes load the batches", "loader {speed}": "the data loader is faster or slower"}
TRIED = {"loader workers=4": "4 worker processes load ahead"}
BOUNDS = {"loader free": "batches are there at once"}
ADDRESSES = Part.LOADER

#: Batches that a worker prepares ahead: PyTorch's `prefetch_factor`.
AHEAD = 2
MOST_WORKERS = 1024
#: Waiting for workers below this share of the step is the hand-over of a batch that is ready.
READY_SHARE = 0.05
#: The name of the time in which workers make a batch.
MADE = "load a batch"
_PAGEABLE = re.compile(r"HtoD \(Pageable")
_WORKERS = re.compile("MultiProcessing")
_MB = 1e6


@dataclass(frozen=True, slots=True)
class WorkerCosts:
    """What worker processes cost the main process, in seconds; `contention` is a share of the host's time."""

    hand_over_s: float
    unmap_s_per_byte: float
    touch_s_per_byte: float
    contention: float

    def times(self, factor: float) -> "WorkerCosts":
        """All costs multiplied by a factor."""
        return WorkerCosts(
            factor * self.hand_over_s, factor * self.unmap_s_per_byte, factor * self.touch_s_per_byte, factor * self.contention
        )


HAND_OVER_S, UNMAP_S_PER_BYTE, TOUCH_S_PER_BYTE, CONTENTION = 1.0e-3, 0.114e-3 / _MB, 0.064e-3 / _MB, 0.033
COSTS = WorkerCosts(HAND_OVER_S, UNMAP_S_PER_BYTE, TOUCH_S_PER_BYTE, CONTENTION)


@dataclass(frozen=True, slots=True)
class Request:
    """The number of workers, or the factor of the loading time."""

    workers: int = 0
    scale: float = 1.0


def parse(rest: str) -> Request:
    """Return the request."""
    text = rest.strip()
    if not text.startswith("workers"):
        return Request(scale=speed(text))
    number = text.removeprefix("workers").strip().removeprefix("=").strip()
    workers = units.read_integer(number, 1, MOST_WORKERS)
    if workers is None:
        raise MalformedError(f"{number[:40]!r} is not a number of workers from 1 to {MOST_WORKERS}")
    return Request(workers=workers)


def apply(replay: Replay, request: Request) -> tuple[Replay, list[str]]:
    """Scale the time of loading, or let workers load. Raises SchedcastError if the recording names no data loader."""
    loading = _loading(replay)
    seconds = fmean(_recorded_s(replay, loading))
    if request.workers:
        return _apply_workers(replay, request.workers, loading, seconds)
    if not _with_workers(loading) or not request.scale:
        scaled = [*loading, *batches_made(replay)]
        changed = with_durations(replay, {task.name: request.scale * task.body.duration_s for task in scaled})
        return changed, [f"{_batches(loading)}, each {units.duration(seconds)} on the host in the mean: {speed_words(request.scale)}"]
    return _apply_to_queue(replay, request.scale, loading, seconds)


def extremes(replay: Replay, request: Request) -> tuple[Replay, ...]:
    """Return the result of workers that cost the main process nothing, and twice as much; nothing for other requests."""
    if not request.workers:
        return ()
    return tuple(with_workers(replay, request.workers, COSTS.times(factor)) for factor in (0.0, 2.0))


def with_workers(replay: Replay, workers: int, costs: WorkerCosts = COSTS) -> Replay:
    """Return the replay, with workers, of a job that loads in its main process."""
    loading = _loading(replay)
    ready_s = {task.name: task.body.duration_s / workers for task in loading}
    copied = _copied_bytes(replay, loading)
    own_s = {name: costs.hand_over_s + costs.unmap_s_per_byte * sum(copies.values()) for name, copies in copied.items()}
    longer_s = {name: costs.touch_s_per_byte * size for copies in copied.values() for name, size in copies.items()}
    seconds = {task.name: task.body.duration_s + longer_s[task.name] for task in device_work(replay) if task.name in longer_s}
    hosts = (task for task in host_work(replay) if task.name not in own_s)
    seconds |= {task.name: task.body.duration_s * (1 + costs.contention) for task in hosts}
    return with_durations(_with_queue(replay, ready_s, own_s, AHEAD * workers), seconds)


def _apply_workers(replay: Replay, workers: int, loading: Sequence[Task], seconds: float) -> tuple[Replay, list[str]]:
    if _with_workers(loading):
        if not batches_made(paced_by_workers(replay)):
            raise SchedcastError(f"loader workers={workers} changes nothing: {_ready(replay, loading)}")
        raise SchedcastError(
            f"loader workers={workers} changes nothing: the job already has workers, whose number is not recorded, and waits"
            f" {units.duration(seconds)} for a batch; 'loader 2x faster' says what twice as many give"
        )
    copies = _copied_bytes(replay, loading)
    mean_bytes = fmean(sum(own.values()) for own in copies.values())
    own_s = COSTS.hand_over_s + COSTS.unmap_s_per_byte * mean_bytes
    unpinned = f", and {units.duration(COSTS.touch_s_per_byte * mean_bytes)} more to copy {mean_bytes / _MB:.3g} MB that are not pinned"
    return with_workers(replay, workers), [
        f"{_batches(loading)}, each {units.duration(seconds)} on the host in the mean: {workers} workers deliver one every"
        f" {units.duration(seconds / workers)}, as if each had a core of its own and loaded as fast as the main process did",
        f"the main thread takes {units.duration(own_s)} to get each batch{unpinned if mean_bytes else ''}; all else that the host does"
        f" takes {units.percent(COSTS.contention, signed=False)} longer beside the workers: means of two recorded pairs (V100, ResNet-50,"
        " 0 and 4 workers); with the constants of one pair, the step of the other is off by at most 4 %",
        "the interval goes from none of these costs to twice as much",
    ]


def _apply_to_queue(replay: Replay, scale: float, loading: Sequence[Task], seconds: float) -> tuple[Replay, list[str]]:
    """Let workers that the job waits for deliver in `scale` times the time."""
    paced = paced_by_workers(replay)
    made = batches_made(paced)
    if not made:
        raise SchedcastError(f"loader {speed_words(scale)} changes nothing: {_ready(replay, loading)}")
    every_s = fmean(task.body.duration_s for task in made[1:])
    return with_durations(paced, {task.name: scale * task.body.duration_s for task in made}), [
        f"the job waits {units.duration(seconds)} in the mean for a batch from its workers, so that they set the pace: a batch every"
        f" {units.duration(every_s)}, with the change every {units.duration(scale * every_s)}; the number of workers is not recorded"
    ]


def is_made(task: Task) -> bool:
    """Whether the task is time in which a worker process makes a batch."""
    return isinstance(task.body, Host) and task.body.label == MADE


def batches_made(replay: Replay) -> list[Task]:
    """Return the tasks in which worker processes make batches."""
    return [task for task in host_work(replay) if task.body.label == MADE]


def paced_by_workers(replay: Replay) -> Replay:
    """Return the replay with a queue of batches at their recorded pace, for each thread that always waits for its worker processes.

    Such a thread gets no batch earlier if it asks for it earlier, whatever else becomes faster.
    """
    threads: dict[tuple[str, int], list[Task]] = {}
    for task in _getters(replay):
        threads.setdefault(task.lane, []).append(task)
    if batches_made(replay):
        return replay
    for loading in threads.values():
        ends_s = _ends_s(replay, loading)
        if _with_workers(loading) and _waits(replay, loading):
            own_s = min(min(_recorded_s(replay, loading)), HAND_OVER_S)
            apart_s = [ends_s[0] - own_s, *(later - earlier for earlier, later in pairwise(ends_s))]
            ready_s = dict(zip((task.name for task in loading), apart_s, strict=True))
            replay = _with_queue(replay, ready_s, dict.fromkeys(ready_s, own_s), len(loading))
    return replay


def _ends_s(replay: Replay, loading: Sequence[Task]) -> list[float]:
    """Return when each batch was there in the recording; of a replay without one, nothing."""
    recorded = _recorded(replay, loading)
    return [recorded[task.name].end_s for task in loading if task.name in recorded]


def _recorded_s(replay: Replay, loading: Sequence[Task]) -> list[float]:
    """Return how long the recorded job waited for each batch."""
    recorded = _recorded(replay, loading)
    lengths_s = {name: round(span.end_s - span.start_s, 12) for name, span in recorded.items()}
    return [lengths_s.get(task.name, task.body.duration_s) for task in loading]


def _recorded(replay: Replay, loading: Sequence[Task]) -> dict[str, Span]:
    names = {task.name for task in loading}
    return {span.task: span for span in replay.recorded.spans if span.task in names} if replay.recorded else {}


def _waits(replay: Replay, loading: Sequence[Task]) -> bool:
    """Whether a thread usually waits for its batch, rather than finding it ready."""
    ends_s = _ends_s(replay, loading)
    if len(ends_s) < max(2, len(loading)):
        return False
    return median(_recorded_s(replay, loading)) >= READY_SHARE * (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)


def _ready(replay: Replay, loading: Sequence[Task]) -> str:
    return f"the job already has workers, and gets a batch in {units.duration(median(_recorded_s(replay, loading)))}, as if it was ready"


def _with_queue(replay: Replay, ready_s: Mapping[str, float], own_s: Mapping[str, float], ahead: int) -> Replay:
    """Return the replay with a thread that makes the batches one after another, `ready_s` each, by the task that gets a batch.

    Getting one takes `own_s`. No more than `ahead` batches are made before they are taken.
    """
    devices = {device.name: device for device in replay.machine.devices}
    host = devices[HOST]
    getters: list[str] = []
    before = len(batches_made(replay))
    changed = []
    for task in replay.tasks:
        if task.name in ready_s:
            taken = (getters[-ahead],) if len(getters) >= ahead else ()
            getters.append(task.name)
            body = Host(ready_s[task.name], MADE, task.body.op)
            batch = Task(f"load batch {before + len(getters)}", body, HOST, host.sms, after=taken)
            task = replace(task, after=(*task.after, batch.name))
            changed.append(batch)
        changed.append(task)
    devices[HOST] = replace(host, sms=host.sms + 1)
    return replace(with_durations(with_tasks(replay, changed), own_s), machine=replace(replay.machine, devices=tuple(devices.values())))


def _loading(replay: Replay) -> list[Task]:
    """Return the host's tasks that load or get a batch."""
    tasks = _getters(replay)
    if batches_made(replay) and not _with_workers(tasks):
        raise SchedcastError("loader changes nothing more: a rule before it has changed what the job waits for")
    if not tasks:
        raise SchedcastError("loader changes nothing: the recording names no data loader, as torch.utils.data.DataLoader does by itself")
    return tasks


def _getters(replay: Replay) -> list[Task]:
    return [task for task in host_work(replay) if task.body.label == GAP and is_loading(task.body.op)]


def _with_workers(loading: Sequence[Task]) -> bool:
    return any(_WORKERS.search(task.body.op) for task in loading)


def _batches(loading: Sequence[Task]) -> str:
    return f"{len(loading)} {'batch is' if len(loading) == 1 else 'batches are'} loaded in the recording"


def _copied_bytes(replay: Replay, loading: Sequence[Task]) -> dict[str, dict[str, float]]:
    """Return by the task that gets a batch the copies of pageable memory to a device that follow it, with their bytes."""
    copies: dict[str, dict[str, float]] = {task.name: {} for task in loading}
    latest = ""
    for task, on_host in zip(replay.tasks, replay.rows.on_host, strict=True):
        if task.name in copies:
            latest = task.name
        elif latest and not on_host and task.body.category == MEMCPY and _PAGEABLE.search(task.body.name):
            copies[latest][task.name] = task.body.bytes
    return copies
