"""Parse the common parts of rules' texts, and find the kernels that they name: by a regular expression, or by a class of kernels.

A regular expression can take exponential time, and Python's `re` cannot be interrupted. The search therefore runs in a separate process,
which is killed if it takes too long or too much memory.

A speed in the text of a rule is written so that larger is faster: `2x faster`, `1.5x slower`, or `free` for something that takes no time.
The older form with a factor for the duration, `*=0.5`, still reads. In all that parses, `rest` is the text after the rule's name.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from simulator.plan.bodies.host import Recorded
from simulator.plan.task import Task
from simulator.replay.nodes import ARRIVAL, short_name
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work
from traces import units
from traces.errors import SchedcastError
from traces.formats.recording import KERNEL

#: Name, regular expression for ops, and one for kernels. A kernel is of the first class that matches its op; its own name decides only if
#: none does, or if no op was recorded. Ops are PyTorch's, with the names of autograd's nodes; kernels are those of cuDNN, cuBLAS,
#: CUTLASS and PyTorch. cuDNN's kernels of batch norm, pooling and softmax come before its convolutions. A compiled kernel whose name lists
#: a convolution among what was fused computes what follows the convolution.
_NOT_FUSED = "^(?!triton_(poi|red|per)_).*"
_CLASSES = (
    ("attention", "flash|fmha|attention", "flash|fmha|attention|attn_fwd|attn_bwd"),
    ("normalization", "(batch|layer|group|rms|instance)_?norm", "batch_?norm|layer_?norm|group_?norm|rms_?norm|bn_(fw|bw)"),
    ("pooling", "pool", "pool"),
    ("softmax", "softmax", "softmax"),
    ("convolutions", f"{_NOT_FUSED}conv(olution|_transpose|_depthwise|[123]d)",
     f"{_NOT_FUSED}(conv|fprop|dgrad|wgrad|cudnn|implicit_gemm|winograd)"),
    ("optimizer kernels", "^(aten::)?_foreach_|_fused_(adam|sgd|adagrad)|^Optimizer\\.step#",
     "multi_tensor_apply|FusedAdam|FusedSgd"),
    ("matrix products", "::(b?mm|addb?mm|addmv|baddbmm|linear|matmul|mv|_scaled_mm)$",
     "[a-z0-9]gemm_|xmma_gemm|gemmSN|gemv|cutlass|nvjet|^Cijk_"),
    ("embeddings", "embedding", "embedding"),
    ("element-wise operations", None, "elementwise_kernel"),
    ("reductions", None, "reduce_kernel"),
)  # fmt: skip
#: A change of layout is a separate class whichever op needs it.
LAYOUT = "layout changes"
_LAYOUT = re.compile("nchwToNhwc|nhwcToNchw|transpose")
_OPS = tuple((name, re.compile(regex, re.IGNORECASE)) for name, regex, _ in _CLASSES if regex)
_KERNELS = tuple((name, re.compile(regex)) for name, _, regex in _CLASSES)
#: The names of all classes. A rule takes one in place of a regular expression.
NAMES = frozenset((LAYOUT, *(name for name, *_ in _CLASSES)))


class KernelClass(NamedTuple):
    """Kernels of one kind: what they compute, their name in rules (a name of `NAMES`, or `^NAME$`), and their seconds."""

    name: str
    pattern: str
    seconds: float


def kernel_classes(work: Iterable[Task]) -> list[KernelClass]:
    """Return the classes of the kernels in `work`, the largest first. A kernel of no known class forms a class with its short name. Such a
    class has all kernels of that name, like the rule that names it.
    """
    kernels = [task.body for task in work if task.body.category == KERNEL]
    seconds: dict[str, float] = defaultdict(float)
    by_short_name: dict[str, float] = defaultdict(float)
    for body in kernels:
        seconds[class_of(body)] += body.duration_s
        by_short_name[short_name(body.name)] += body.duration_s
    classes = [
        KernelClass(name, name, total) if name in NAMES else KernelClass(name, _named(name), by_short_name[name])
        for name, total in seconds.items()
    ]
    return sorted(classes, key=lambda each: -each.seconds)


def _named(short: str) -> str:
    """Return the name in rules of the kernels with a short name: not those whose names only contain it."""
    return f"^{re.escape(short)}$"


def _of_class(work: Iterable[Task], pattern: str) -> list[Task]:
    """Return the kernels that a rule calls by a name of `NAMES`, or by their short name as `^NAME$`; none for another pattern."""
    kernels = [task for task in work if task.body.category == KERNEL]
    if pattern in NAMES:
        return [task for task in kernels if class_of(task.body) == pattern]
    return [task for task in kernels if pattern[:1] == "^" and _named(short_name(task.body.name)) == pattern]


def class_of(work: Recorded) -> str:
    """Return the class of a kernel: a name of `NAMES`, or the kernel's short name."""
    return class_named(work.name, work.op)


@lru_cache(maxsize=4096)
def class_named(kernel: str, op: str) -> str:
    """Return the class of a kernel by its name and that of its op."""
    if _LAYOUT.search(kernel):
        return LAYOUT
    by_op = (name for name, regex in _OPS if op and regex.search(op))
    by_name = (name for name, regex in _KERNELS if regex.search(kernel))
    return next(by_op, None) or next(by_name, None) or short_name(kernel)


#: A larger factor is taken for a typing error.
LARGEST_FACTOR = 1e6
#: The form of a speed, for messages.
SPEED = "2x faster, 1.5x slower or free"


class MalformedError(Exception):
    """The text of a rule cannot be parsed; the message says why."""


def nothing(rest: str) -> None:
    """Raise MalformedError if anything follows the name, for rules without an argument."""
    if rest:
        raise MalformedError(f"{rest[:40]!r} follows the name")


def factor(text: str, least: float = 0.0) -> float:
    """Return the number in `text`, which must be larger than `least`; 0 is allowed if `least` is 0."""
    number = units.read_number(text)
    if number is None:
        raise MalformedError(f"{text[:40]!r} is not a finite number")
    if not (least < number <= LARGEST_FACTOR or number == least == 0.0):
        raise MalformedError(f"the factor {text[:40]} is out of range")
    return number


def is_speed(text: str) -> bool:
    """Whether the text ends as a speed does."""
    return text.rstrip().lower().endswith(("faster", "slower", "free"))


def speed(text: str) -> float:
    """Return what a speed multiplies durations by: 0.5 for `2x faster`, 1.5 for `1.5x slower`, 0 for `free`."""
    words = text.lower().split()
    if words == ["free"]:
        return 0.0
    if len(words) != 2 or words[1] not in ("faster", "slower"):
        raise MalformedError(f"{text.strip()[:40]!r} is not a speed such as {SPEED}" if words else f"it has no speed such as {SPEED}")
    number = factor(words[0].rstrip("x×"), least=1e-6)
    if number < 1:
        opposite = "slower" if words[1] == "faster" else "faster"
        raise MalformedError(f"the factor {words[0][:40]} is below 1; write {1 / number:g}x {opposite} if that is meant")
    return 1 / number if words[1] == "faster" else number


def speed_words(scale: float) -> str:
    """Return the speed of something whose duration is multiplied by `scale`, as `speed` reads it."""
    if not scale:
        return "free"
    return f"{1 / scale:.4g}x faster" if scale <= 1 else f"{scale:.4g}x slower"


def pattern(rest: str) -> str:
    """Return the regular expression of `:/REGEX/`; the slashes may be missing."""
    regex = rest[1:].strip() if rest.startswith(":") else ""
    if len(regex) > 1 and regex[0] == regex[-1] == "/":
        regex = regex[1:-1]
    if not regex or regex == "/":
        raise MalformedError("it has no regular expression")
    return regex


def pattern_and(rest: str, sign: str) -> tuple[str, str]:
    """Return the regular expression and the text of the number in `:/REGEX/<sign>NUMBER`."""
    regex, separator, number = rest.rpartition(sign)
    if not separator or not regex.removeprefix(":"):
        raise MalformedError(f"it lacks a regular expression or {sign!r} with a number")
    return pattern(regex), number


def pattern_and_speed(rest: str) -> tuple[str, float]:
    """Return the regular expression and the scale of durations in `:/REGEX/ SPEED`. The slashes may be missing if the regular expression
    does not begin with one."""
    if rest.startswith(":/"):
        regex, slash, after = rest[2:].rpartition("/")
        if not slash:
            raise MalformedError("its regular expression has no slash at the end")
        return pattern(f":/{regex}/"), speed(after)
    if not is_speed(rest):
        raise MalformedError(f"it has no speed such as {SPEED}")
    words = 1 if rest.lower().rstrip().endswith("free") else 2
    regex, *text = rest.rsplit(None, words)
    return pattern(regex if len(text) == words else ""), speed(" ".join(text))


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
    """Return the device tasks whose recorded name contains a match of the regular expression; for the name of a class, or for `^NAME$` with
    a short name of kernels, those kernels.

    Raises SchedcastError if there are none, and MalformedError if it is no regular expression or takes too long.
    """
    work = device_work(replay)
    of_class = _of_class(work, regex)
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


@dataclass(frozen=True)
class KernelMatches:
    """Kernels (also copies and collectives) of a recording whose names match.

    `kernels` and `seconds`: in the whole recording. `steps`: recorded steps, at least 1. `share`: of the seconds of all kernels.
    `names`: (short name, kernels, seconds), the longest first.
    """

    kernels: int
    seconds: float
    steps: int
    share: float
    names: tuple[tuple[str, int, float], ...]


def kernel_matches(replay: Replay, regex: str) -> KernelMatches:
    """Return what a regular expression matches. Raises SchedcastError if that is nothing, or if it cannot be used."""
    try:
        tasks = matching(replay, regex)
    except MalformedError as error:
        raise SchedcastError(str(error)) from error
    counts: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for task in tasks:
        own = counts[short_name(task.body.name)]
        own[0] += ARRIVAL not in task.name
        own[1] += task.body.duration_s
    total_s = sum(task.body.duration_s for task in device_work(replay))
    names = sorted(((name, int(count), seconds) for name, (count, seconds) in counts.items()), key=lambda row: (-row[2], row[0]))
    seconds, share = sum(row[2] for row in names), 0.0
    if total_s:
        share = seconds / total_s
    return KernelMatches(sum(row[1] for row in names), seconds, max(1, len(replay.steps)), share, tuple(names))
