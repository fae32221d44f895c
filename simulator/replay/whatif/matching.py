"""Find the kernels whose names match a user's regular expression, or that are of a class of kernels.

A regular expression can take exponential time, and Python's `re` cannot be interrupted. The search therefore runs in a process of its own,
which is killed if it takes too long or too much memory.
"""

import json
import subprocess
import sys
from functools import lru_cache

from simulator.plan.task import Task
from simulator.replay.nodes import ARRIVAL, short_name
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work
from simulator.replay.whatif.kernel_classes import NAMES, class_of
from simulator.replay.whatif.parsing import MalformedError
from traces import units
from traces.errors import SchedcastError
from traces.formats.recording import KERNEL

#: Largest number of characters of a regular expression.
LONGEST = 300
#: Processor seconds and wall-clock seconds of all searches for one regular expression, and the memory that they may take.
CPU_S, TIMEOUT_S, LARGEST_BYTES = 1, 10.0, 1 << 30
#: Characters of a kernel's name that are searched.
SEARCHED = 2000
_SEARCH = """
import json, re, sys
cpu_s, largest_bytes, regex, names = json.load(sys.stdin)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (largest_bytes, largest_bytes))
except (ImportError, OSError, ValueError):
    pass
try:
    pattern = re.compile(regex)
    json.dump([number for number, name in enumerate(names) if pattern.search(name)], sys.stdout)
except (re.error, OverflowError, RecursionError, MemoryError) as error:
    json.dump(str(error) or type(error).__name__, sys.stdout)
"""


def matching(replay: Replay, regex: str) -> list[Task]:
    """Return the device tasks whose recorded name contains a match of the regular expression; for the name of a class, its kernels.

    Raises SchedcastError if there are none, and MalformedError if it is no regular expression or takes too long.
    """
    work = device_work(replay)
    of_class = [task for task in work if regex in NAMES and task.body.category == KERNEL and class_of(task.body) == regex]
    if of_class:
        return of_class
    names = tuple(dict.fromkeys(task.body.name for task in work))
    chosen = {names[number] for number in _search(regex, names)}
    if not chosen:
        totals: dict[str, float] = {}
        for task in work:
            totals[short_name(task.body.name)] = totals.get(short_name(task.body.name), 0.0) + task.body.duration_s
        largest = ", ".join(sorted(totals, key=totals.__getitem__, reverse=True)[:3])
        raise SchedcastError(f"no kernel matches {regex!r}, of {len(names)} names in the recording; the largest are: {largest or 'none'}")
    return [task for task in work if task.body.name in chosen]


@lru_cache(maxsize=64)
def _search(regex: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of the names that match."""
    if len(regex) > LONGEST:
        raise MalformedError(f"the regular expression {regex[:40]!r}... has {len(regex)} characters; expected at most {LONGEST}")
    question = json.dumps([CPU_S, LARGEST_BYTES, regex, [name[:SEARCHED] for name in names]])
    command = [sys.executable, "-I", "-S", "-c", _SEARCH]
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:  # killed by one of the limits
        raise MalformedError(f"the regular expression {regex!r} takes too long on the kernel names; write a simpler one")
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise MalformedError(f"{regex!r} is not a regular expression ({answer}); expected Python's syntax, such as conv|gemm")
    return tuple(answer)


def total_words(tasks: list[Task]) -> str:
    """Return the number of tasks and their total duration: `12 kernels (3.1 ms)`."""
    seconds = sum(task.body.duration_s for task in tasks)
    number = sum(ARRIVAL not in task.name for task in tasks)
    return f"{number} {'kernel' if number == 1 else 'kernels'} ({units.duration(seconds)})"
