"""A cache of computed patterns and products, bounded by their bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

#: All patterns and products of VGG-11 pruned to 3 % fit.
MOST_BYTES = 2**30


class Store:
    """Results by recipe; each result states its size in `bytes`. Drops the least recently used; never keeps one over `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes, self.bytes = most_bytes, 0
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, recipe: Hashable, compute: Callable[[], Any]) -> Any:
        """The stored result of `recipe`, or that of `compute()` if there is none."""
        with self._lock:
            if recipe in self._results:
                self._results.move_to_end(recipe)
                return self._results[recipe]
        result = compute()
        with self._lock:
            if recipe not in self._results and result.bytes <= self.most_bytes:
                self._results[recipe] = result
                self.bytes += result.bytes
                while self.bytes > self.most_bytes:
                    _, dropped = self._results.popitem(last=False)
                    self.bytes -= dropped.bytes
        return result


store = Store()
