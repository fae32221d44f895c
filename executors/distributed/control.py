"""The control channel between the processes of one job: rank 0 sends a message to all other ranks, and every rank answers.

A message is JSON followed by tensors. It is sent over gloo through host memory, so a CUDA tensor is copied to the host first. The other
ranks wait in `receive` while rank 0 works alone.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executors.cpu import allocator
from executors.distributed.ranks import Ranks
from executors.errors import PeerLostError, first_sentence
from executors.kernels import communication
from traces.errors import SchedcastError

#: Longest wait for a message. It is long because rank 0 may calibrate in between. If rank 0 dies, its connections close and the wait ends.
MESSAGE_TIMEOUT = timedelta(days=1)
#: How long rank 0 keeps its store open for processes that have not started yet.
STORE_TIMEOUT = timedelta(minutes=1)
#: What rank 0 writes to the store to open the channel. Otherwise it writes the exit status for the other ranks.
_OPEN = "open"

Named = Mapping[str, torch.Tensor]


class ControlChannel:
    """The connection between all processes of the job. `ranks`: this process's ranks."""

    def __init__(self, ranks: Ranks, store: dist.Store):
        """Connect. Every process must create its channel. Raises PeerLostError if the processes do not find each other."""
        self.ranks = ranks
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}  # by ranks
        #: Whether a message has been sent that the other ranks have not answered yet.
        self.busy = False
        allocator.prepare()
        if ranks.one_node and Path("/sys/class/net/lo").exists():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may not resolve
        with _peer_errors():
            dist.init_process_group(
                "gloo", store=dist.PrefixStore("control", store), rank=ranks.rank, world_size=ranks.world, timeout=MESSAGE_TIMEOUT
            )

    def send(self, message: Mapping[str, Any], tensors: Named | None = None) -> None:
        """Send a message, and tensors of any device and dtype by name, from rank 0 to all other ranks."""
        tensors = tensors or {}
        headers = [[name, list(t.shape), list(_strides(t)), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()]
        self.busy = True
        with _peer_errors():
            _broadcast(json.dumps([message, headers]).encode())
            for tensor in tensors.values():
                if tensor.numel():
                    dist.broadcast(_bytes_of(tensor), 0)

    def receive(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Wait for the next message from rank 0. Returns it with its tensors by name."""
        with _peer_errors():
            message, headers = json.loads(_broadcast(None))
            tensors = {}
            for name, shape, strides, dtype in headers:
                tensors[name] = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
                if tensors[name].numel():
                    dist.broadcast(communication.as_bytes(tensors[name]), 0)
        return message, tensors

    def gather(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send this rank's answer to rank 0. Returns all answers by rank on rank 0, and an empty list elsewhere.

        Raises SchedcastError on rank 0 if a rank answers with an `error`.
        """
        raw = torch.frombuffer(bytearray(json.dumps(answer).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks.world)]
        with _peer_errors():
            dist.all_gather(sizes, torch.tensor([raw.numel()]))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: raw.numel()] = raw
            received = [torch.empty(longest, dtype=torch.uint8) for _ in sizes] if self.ranks.first else None
            dist.gather(padded, received)
        self.busy = False
        if received is None:
            return []
        answers = [json.loads(content[: int(size)].numpy().tobytes()) for content, size in zip(received, sizes, strict=True)]
        for rank, sent in enumerate(answers):
            if "error" in sent:
                raise SchedcastError(f"process {rank} of {self.ranks.world}: {sent['error']}")
        return answers

    def give(self, tensor: torch.Tensor) -> None:
        """Send a tensor to rank 0, which must `take` it."""
        if tensor.numel():
            with _peer_errors():
                dist.send(_bytes_of(tensor), 0)

    def take(self, empty: torch.Tensor, rank: int) -> torch.Tensor:
        """Receive a tensor that `rank` gives, into a dense CPU tensor of its shape and strides."""
        if empty.numel():
            with _peer_errors():
                dist.recv(communication.as_bytes(empty), rank)
        return empty

    def max_over(self, ranks: Sequence[int]) -> Callable[[float], float]:
        """A function for the largest value that any of `ranks` calls it with. Each of them must call it equally often; others must not.

        Every process must call `max_over` itself, since PyTorch lets all processes create a group together.
        """
        key = tuple(sorted(ranks))
        with _peer_errors():
            if key not in self._groups:
                self._groups[key] = dist.new_group(list(key), timeout=MESSAGE_TIMEOUT, backend="gloo")
        group = self._groups[key]

        def largest(value: float) -> float:
            tensor = torch.tensor([value], dtype=torch.float64)
            with _peer_errors():
                dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
            return float(tensor)

        return largest

    def barrier(self) -> None:
        """Wait until every process has called this."""
        with _peer_errors():
            dist.barrier()

    def close(self) -> None:
        """Disconnect. All processes close their channels together."""
        communication.forget_groups()
        dist.destroy_process_group()


_channel: ControlChannel | None = None


def open_channel(ranks: Ranks) -> ControlChannel:
    """Rank 0's channel, opened at the first call."""
    global _channel
    if _channel is None:
        store = _store()
        store.set(_decision_key(), _OPEN)
        _channel = ControlChannel(ranks, store)
    return _channel


def end_ranks(status: int) -> None:
    """Let the other ranks exit with `status`. Called by rank 0 when it ends.

    If the other ranks are still executing a command, nothing is sent: they notice that rank 0's connections close.
    """
    if _channel is None:
        with _peer_errors():
            store = _store()
            store.set(_decision_key(), str(status))
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # the store belongs to this process and ends with it
                store.wait([_received_key(rank) for rank in range(1, int(os.environ["WORLD_SIZE"]))], STORE_TIMEOUT)
    elif not _channel.busy:
        _channel.send({"command": "end", "status": status})
        _channel.close()


def join_channel(ranks: Ranks) -> ControlChannel | int:
    """Wait for rank 0's decision. Returns the channel if rank 0 opens one, and otherwise the status to exit with."""
    store = _store()
    with _peer_errors():
        store.wait([_decision_key()], MESSAGE_TIMEOUT)
        decision = store.get(_decision_key()).decode()
        store.set(_received_key(ranks.rank), "")
    return ControlChannel(ranks, store) if decision == _OPEN else int(decision)


def _store() -> dist.Store:
    """The launcher's store. Raises SchedcastError if PyTorch lacks gloo, or if no launcher answers."""
    if not (dist.is_available() and dist.is_gloo_available()):
        raise SchedcastError(f"PyTorch {torch.__version__} is built without torch.distributed or gloo; run in one process, with --devices")
    try:
        return next(dist.rendezvous("env://"))[0]
    except (ValueError, RuntimeError) as error:
        raise SchedcastError(
            f"torchrun's store cannot be reached ({str(error).splitlines()[0]}); start the processes with torchrun"
        ) from error


def _decision_key() -> str:
    """The store's key of rank 0's decision, one per restart of the job."""
    return f"schedcast {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} decision"


def _received_key(rank: int) -> str:
    """The store's key that a rank sets once it has read the decision."""
    return f"{_decision_key()} received by {rank}"


@contextmanager
def _peer_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"another process of the job ended or does not answer ({first_sentence(error)})") from error


def _broadcast(content: bytes | None) -> bytes:
    """Send `content` from rank 0; the other ranks pass None. Returns the content on every rank."""
    size = torch.tensor([len(content) if content is not None else 0])
    dist.broadcast(size, 0)
    raw = torch.empty(int(size), dtype=torch.uint8)
    if content is not None:
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(raw, 0)
    return raw.numpy().tobytes()


def _strides(tensor: torch.Tensor) -> Sequence[int]:
    """The tensor's strides if its elements are dense in memory, otherwise those of a contiguous tensor of its shape."""
    return torch.empty_like(tensor, device="meta").stride()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense CPU tensor in memory order, without a copy. Any other tensor is first copied to a dense CPU tensor."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or tensor.stride() != tuple(_strides(tensor)):
        tensor = torch.empty_like(tensor, device="cpu").copy_(tensor)
    return communication.as_bytes(tensor)
