"""One persistent thread per core, pinned, with a single intra-op thread. The main thread sleeps while they run."""

import os
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

import torch

from executors.cpu import allocator

#: Longest time between looks for Ctrl-C. A signal that another thread receives, or that arrives just before the main thread falls asleep,
#: does not wake it.
LOOK_S = 0.25


class Workers:
    """Threads that run a function each, one per core of `cores`; exceptions are raised again in the caller."""

    def __init__(self, cores: tuple[int, ...]):
        allocator.prepare()
        self.cores = cores
        self._orders: list[SimpleQueue] = []
        for core in cores:
            orders: SimpleQueue = SimpleQueue()
            self._orders.append(orders)
            threading.Thread(target=self._serve, args=(core, orders), daemon=True, name=f"stepcast-core{core}").start()

    def run(self, work: Callable[[int], None], members: tuple[int, ...] | None = None) -> None:
        """Run `work(position)` on the workers at `members` (default all) and wait for them."""
        members = tuple(range(len(self.cores))) if members is None else members
        answers: SimpleQueue = SimpleQueue()  # of this call alone: an interrupted one may still be answered later
        for position in members:
            self._orders[position].put((work, position, answers))
        errors = [error for error in (_next(answers) for _ in members) if error is not None]
        if errors:
            raise errors[0]

    def _serve(self, core: int, orders: SimpleQueue) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})
        torch.set_grad_enabled(False)
        while True:
            work, position, answers = orders.get()
            torch.set_num_threads(1)  # the plain-PyTorch reference sets all cores in between
            try:
                work(position)
            except BaseException as error:
                answers.put(error)
            else:
                answers.put(None)
            del work


class Callers:
    """Threads by name that are on no core of their own: they make calls that wait for something else, such as another process."""

    def __init__(self):
        self._orders: dict[str, SimpleQueue] = {}

    def start(self, work: Callable[[str], None], names: Iterable[str]) -> Callable[[], None]:
        """Let `work(name)` run on the thread of every name, made where it is new. Call what this returns to wait for them."""
        answers: SimpleQueue = SimpleQueue()
        names = tuple(names)
        for name in names:
            if name not in self._orders:
                self._orders[name] = SimpleQueue()
                threading.Thread(target=_serve_calls, args=(self._orders[name],), daemon=True, name=f"stepcast {name}").start()
            self._orders[name].put((work, name, answers))

        def wait() -> None:
            errors = [error for error in (_next(answers) for _ in names) if error is not None]
            if errors:
                raise errors[0]

        return wait


def _serve_calls(orders: SimpleQueue) -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    while True:
        work, name, answers = orders.get()
        try:
            work(name)
        except BaseException as error:
            answers.put(error)
        else:
            answers.put(None)
        del work


def _next(answers: SimpleQueue) -> BaseException | None:
    """The next answer; Ctrl-C ends the wait."""
    while True:
        try:
            return answers.get(timeout=LOOK_S)
        except Empty:
            pass


def available_cores() -> tuple[int, ...]:
    """Cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(os.cpu_count() or 1))
