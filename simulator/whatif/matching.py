"""Find the kernels whose names match a user's regular expression.

A regular expression can take exponential time, and Python's `re` cannot be interrupted. The search therefore runs in a process of its own,
which is killed if it takes too long.
"""

import json
import subprocess
import sys

from simulator.plan.task import Task
from simulator.replay.nodes import ARRIVAL
from simulator.replay.replay import Replay
from simulator.whatif.edit import device_work
from traces import units
from traces.errors import StepcastError

#: Largest number of characters of a regular expression; time limit of all its searches together.
LONGEST, TIMEOUT_S = 300, 3.0
#: Characters of a kernel's name that are searched.
SEARCHED = 2000
_SEARCH = """
import json, re, sys
regex, names = json.load(sys.stdin)
try:
    pattern = re.compile(regex)
    json.dump([number for number, name in enumerate(names) if pattern.search(name)], sys.stdout)
except (re.error, OverflowError, RecursionError, MemoryError) as error:
    json.dump(str(error), sys.stdout)
"""


def matching(replay: Replay, regex: str) -> list[Task]:
    """Return the device tasks whose recorded name contains a match of the regular expression. Raises StepcastError if there are none."""
    work = device_work(replay)
    names = list(dict.fromkeys(task.body.name for task in work))
    chosen = {names[number] for number in _search(regex, names)}
    if not chosen:
        totals: dict[str, float] = {}
        for task in work:
            totals[task.body.name] = totals.get(task.body.name, 0.0) + task.body.duration_s
        longest = ", ".join(name[:60] for name in sorted(totals, key=totals.__getitem__, reverse=True)[:3])
        raise StepcastError(
            f"{regex!r} matches none of the {len(names)} kernel names of the recording; the longest are: {longest or 'none'}"
        )
    return [task for task in work if task.body.name in chosen]


def _search(regex: str, names: list[str]) -> list[int]:
    if len(regex) > LONGEST:
        raise StepcastError(f"the regular expression {regex[:40]!r}... has {len(regex)} characters; expected at most {LONGEST}")
    question = json.dumps([regex, [name[:SEARCHED] for name in names]])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH], input=question, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise StepcastError(
            f"the regular expression {regex!r} takes more than {TIMEOUT_S:g} s on the kernel names; write a simpler one"
        ) from None
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise StepcastError(f"{regex!r} is not a regular expression ({answer}); expected Python's syntax, such as conv|gemm")
    return answer


def total_words(tasks: list[Task]) -> str:
    """Return the number of tasks and their total duration: `12 kernels (3.1 ms)`."""
    seconds = sum(task.body.duration_s for task in tasks)
    number = sum(ARRIVAL not in task.name for task in tasks)
    return f"{number} {'kernel' if number == 1 else 'kernels'} ({units.duration(seconds)})"
