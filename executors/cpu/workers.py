"""Persistent threads that run tasks: one pinned thread per core, with a single intra-op thread each. The main thread sleeps meanwhile."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import torch

from executors.cpu import allocator

#: Longest time that the main thread sleeps before it checks for Ctrl-C. A signal does not wake the main thread if another thread receives
#: it, or if it arrives just before the main thread falls asleep.
SIGNAL_CHECK_S = 0.25


class Workers:
    """One thread per core of `cores`. Exceptions in a thread are raised again in the caller."""

    def __init__(self, cores: tuple[int, ...]):
        allocator.prepare()
        self.cores = cores
        self._requests: list[SimpleQueue] = []
        for core in cores:
            requests: SimpleQueue = SimpleQueue()
            self._requests.append(requests)
            threading.Thread(target=_serve, args=(requests, core), daemon=True, name=f"schedcast-core{core}").start()

    def run(self, work: Callable[[int], None], positions: tuple[int, ...] | None = None) -> None:
        """Run `work(position)` on the workers at `positions` (default: all) and wait for them."""
        positions = tuple(range(len(self.cores))) if positions is None else positions
        results: SimpleQueue = SimpleQueue()  # of this call only: the workers of an interrupted call may still put results into theirs
        for position in positions:
            self._requests[position].put((work, position, results))
        _wait(results, len(positions))


class Callers:
    """Unpinned threads, by name, for calls that wait for something else, such as another process."""

    def __init__(self):
        self._requests: dict[str, SimpleQueue] = {}

    def start(self, work: Callable[[str], None], names: Iterable[str]) -> Callable[[], None]:
        """Start `work(name)` on the thread of each name, and create the threads that do not exist yet.

        Returns a function that waits for all of them.
        """
        results: SimpleQueue = SimpleQueue()
        names = tuple(names)
        for name in names:
            if name not in self._requests:
                self._requests[name] = SimpleQueue()
                threading.Thread(target=_serve, args=(self._requests[name],), daemon=True, name=f"schedcast {name}").start()
            self._requests[name].put((work, name, results))
        return partial(_wait, results, len(names))


def _serve(requests: SimpleQueue, core: int | None = None) -> None:
    """Answer requests on this thread, which is pinned to `core` if there is one."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    torch.set_grad_enabled(False)
    while True:
        work, argument, results = requests.get()
        torch.set_num_threads(1)  # the plain-PyTorch reference sets it to all cores in between
        try:
            work(argument)
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)
        del work


def _wait(results: SimpleQueue, count: int) -> None:
    """Wait for `count` results, and raise the first error among them. Ctrl-C ends the wait."""
    errors = []
    while count:
        with suppress(Empty):
            error = results.get(timeout=SIGNAL_CHECK_S)
            count -= 1
            errors += [error] if error is not None else []
    if errors:
        raise errors[0]
