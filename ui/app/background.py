"""Work that goes on behind a page, item by item, while the page shows how far it is. It can be stopped between two items."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from traces.errors import SchedcastError

Item = TypeVar("Item")
Result = TypeVar("Result")


class BackgroundRun(Generic[Item, Result]):
    """A thread that calls `work` on every item. `results` grows by the results of each item, in order.

    `error`: why the work ended early, in one line; empty if it did not.
    """

    def __init__(self, items: Sequence[Item], work: Callable[[Item], Iterable[Result]]):
        self.total = len(items)
        self.done = 0
        self.results: list[Result] = []
        self.error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(tuple(items), work), daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether items are left, and nobody has stopped the work."""
        return self._thread.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether the work was stopped before its end."""
        return self._stop.is_set() and self.done < self.total

    def stop(self) -> None:
        """End the work after the current item."""
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the work has ended."""
        self._thread.join(timeout_s)

    def _run(self, items: Sequence[Item], work: Callable[[Item], Iterable[Result]]) -> None:
        for item in items:
            if self._stop.is_set():
                return
            try:
                self.results += work(item)
            except SchedcastError as error:
                self.error = str(error)
                return
            except Exception as error:  # a thread has nobody to raise to: the page says what happened
                self.error = f"{type(error).__name__}: {error}"
                raise
            self.done += 1
