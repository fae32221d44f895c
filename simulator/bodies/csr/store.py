"""What was computed for a recipe is kept, up to a number of bytes: the least recently used goes first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

#: All patterns and products of VGG-11 pruned to 3 % fit.
MOST_BYTES = 2**30


class Store:
    """Results with a size in `bytes`, by recipe. A result larger than `most_bytes` is handed out and not kept."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, recipe: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gave for `recipe`, made again where it was dropped."""
        with self._lock:
            if recipe in self._kept:
                self._kept.move_to_end(recipe)
                return self._kept[recipe]
        made = make()
        with self._lock:
            if recipe not in self._kept and made.bytes <= self.most_bytes:
                self._kept[recipe] = made
                self.bytes += made.bytes
                while self.bytes > self.most_bytes:
                    _, dropped = self._kept.popitem(last=False)
                    self.bytes -= dropped.bytes
        return made


store = Store()
