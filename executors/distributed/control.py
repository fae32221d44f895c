"""The processes of one job as a team: the first sends messages to all, and every one answers.

Messages are JSON with tensors behind it, over gloo and the machine's memory: CUDA's tensors are sent by collectives alone. A follower
waits in `receive` as long as the leader works by itself.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executors import process_groups
from executors.cpu import allocator
from executors.distributed.ranks import Ranks
from executors.errors import PeerLostError, first_sentence
from traces.errors import StepcastError

#: A message may be long in coming, while the leader calibrates. Where it has died, its connections close, and nobody waits.
PATIENCE = timedelta(days=1)
#: So long the leader keeps its store for processes that have yet to start.
HEARING = timedelta(minutes=1)
#: What the leader leaves in the store: this where the team is to meet, else the status to end with.
_MEET = "meet"

Named = Mapping[str, torch.Tensor]


class ControlChannel:
    """The processes, once all have met. `ranks`: which one this is."""

    def __init__(self, ranks: Ranks, store: dist.Store):
        """All processes must make theirs. Raises StepcastError where PyTorch lacks gloo, or the processes do not find each other."""
        self.ranks = ranks
        #: Whether the others have been told something that they have not answered yet.
        self.busy = False
        allocator.prepare()
        if ranks.one_node and Path("/sys/class/net/lo").exists():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may lead nowhere
        with _lost():
            dist.init_process_group(
                "gloo", store=dist.PrefixStore("team", store), rank=ranks.rank, world_size=ranks.world, timeout=PATIENCE
            )

    def send(self, message: Mapping[str, Any], tensors: Named | None = None) -> None:
        """Tell the followers. `tensors` of any kind, by name."""
        tensors = tensors or {}
        forms = [[name, list(t.shape), list(_strides(t)), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()]
        self.busy = True
        with _lost():
            _broadcast(json.dumps([message, forms]).encode())
            for tensor in tensors.values():
                if tensor.numel():
                    dist.broadcast(_bytes_of(tensor), 0)

    def receive(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The leader's next message."""
        with _lost():
            message, forms = json.loads(_broadcast(None))
            tensors = {}
            for name, shape, strides, dtype in forms:
                tensors[name] = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
                if tensors[name].numel():
                    dist.broadcast(_line(tensors[name]), 0)
        return message, tensors

    def gather(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Everyone's answers, by rank; on a follower none.

        Raises StepcastError on the leader where a follower answers with an `error`.
        """
        raw = torch.frombuffer(bytearray(json.dumps(answer).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks.world)]
        with _lost():
            dist.all_gather(sizes, torch.tensor([raw.numel()]))
            most = max(int(size) for size in sizes)
            padded = torch.zeros(most, dtype=torch.uint8)
            padded[: raw.numel()] = raw
            places = [torch.empty(most, dtype=torch.uint8) for _ in sizes] if self.ranks.first else None
            dist.gather(padded, places)
        self.busy = False
        if places is None:
            return []
        found = [json.loads(place[: int(size)].numpy().tobytes()) for place, size in zip(places, sizes, strict=True)]
        for rank, said in enumerate(found):
            if "error" in said:
                raise StepcastError(f"process {rank} of {self.ranks.world}: {said['error']}")
        return found

    def largest(self, value: float) -> float:
        """The largest of all processes' values."""
        found = torch.tensor([value], dtype=torch.float64)
        with _lost():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def barrier(self) -> None:
        """Wait until every process is here."""
        with _lost():
            dist.barrier()

    def close(self) -> None:
        """Leave the job, all processes together."""
        process_groups.forget()
        dist.destroy_process_group()


_team: ControlChannel | None = None


def lead(ranks: Ranks) -> ControlChannel:
    """The leader's team, met at the first call."""
    global _team
    if _team is None:
        store = _store()
        store.set(_word(), _MEET)
        _team = ControlChannel(ranks, store)
    return _team


def leave(status: int) -> None:
    """At the leader's end: let the followers end with `status` too. Where they are in the middle of something they see it end."""
    if _team is None:
        with _lost():
            store = _store()
            store.set(_word(), str(status))
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # the store is this process's, and ends with it
                store.wait([_heard(rank) for rank in range(1, int(os.environ["WORLD_SIZE"]))], HEARING)
    elif not _team.busy:
        _team.send({"do": "end", "status": status})
        _team.close()


def join(ranks: Ranks) -> ControlChannel | int:
    """A follower's team once the leader wants one, or the status to end with where it does not."""
    store = _store()
    with _lost():
        store.wait([_word()], PATIENCE)
        word = store.get(_word()).decode()
        store.set(_heard(ranks.rank), "")
    return ControlChannel(ranks, store) if word == _MEET else int(word)


def _store() -> dist.Store:
    """The launcher's. Raises StepcastError without gloo, or where there is no launcher."""
    if not (dist.is_available() and dist.is_gloo_available()):
        raise StepcastError(f"PyTorch {torch.__version__} is built without torch.distributed or gloo; run in one process, with --devices")
    try:
        return next(dist.rendezvous("env://"))[0]
    except (ValueError, RuntimeError) as error:
        raise StepcastError(
            f"torchrun's store cannot be reached ({str(error).splitlines()[0]}); start the processes with torchrun"
        ) from error


def _word() -> str:
    return f"stepcast {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} word"


def _heard(rank: int) -> str:
    return f"{_word()} heard by {rank}"


@contextmanager
def _lost() -> Iterator[None]:
    """Within it, what gloo raises is PeerLostError."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"another process of the job ended or does not answer ({first_sentence(error)})") from error


def _broadcast(content: bytes | None) -> bytes:
    size = torch.tensor([len(content) if content is not None else 0])
    dist.broadcast(size, 0)
    raw = torch.empty(int(size), dtype=torch.uint8)
    if content is not None:
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(raw, 0)
    return raw.numpy().tobytes()


def _strides(tensor: torch.Tensor) -> Sequence[int]:
    """Its own, where its elements lie densely; else a contiguous tensor's."""
    return torch.empty_like(tensor, device="meta").stride()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor in the CPU's memory, in the order in which they lie; of any other, of a dense copy."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or tensor.stride() != tuple(_strides(tensor)):
        tensor = torch.empty_like(tensor, device="cpu").copy_(tensor)
    return _line(tensor)


def _line(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
