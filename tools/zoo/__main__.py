"""Try all models of the zoo, two at a time, each in a process with limits of time and memory, and write docs/zoo.md.

python -m tools.zoo [--again] [NAME]...: those named, or those not tried since the rows were stored (all with --again).
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from platformdirs import user_cache_dir

from tools.zoo.models import ENTRIES, Entry
from tools.zoo.one import Row
from traces.files import write_atomic

TIME_LIMIT_S, MEMORY_LIMIT_BYTES, AT_ONCE = 900, 12 << 30, 2
ROWS = Path(user_cache_dir("schedcast")) / "zoo.jsonl"
TABLE = Path(__file__).parents[2] / "docs" / "zoo.md"


def main() -> int:
    """Try the models, and write the table after each."""
    named = [argument for argument in sys.argv[1:] if argument != "--again"]
    rows = {} if "--again" in sys.argv else _kept()
    todo = [entry for entry in ENTRIES if entry.name in named or (not named and _key(entry) not in rows)]
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for entry, row in zip(todo, pool.map(_tried, todo), strict=True):
            rows[_key(entry)] = row
            write_atomic(ROWS, "".join(json.dumps([*key, asdict(row)]) + "\n" for key, row in rows.items()))
            print(f"{len(rows)} of {len(ENTRIES)}: {row.name}: {row.numbers or row.refusal}", file=sys.stderr, flush=True)
            write_atomic(TABLE, table([rows[_key(entry)] for entry in ENTRIES if _key(entry) in rows]))
    return 0


def _key(entry: Entry) -> tuple[str, str]:
    return entry.source, entry.name


def _kept() -> dict[tuple[str, str], Row]:
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return {(source, name): Row(**fields) for source, name, fields in map(json.loads, lines)}


def _tried(entry: Entry) -> Row:
    limited = f"ulimit -v {MEMORY_LIMIT_BYTES // 1024} && exec {sys.executable} -m tools.zoo.one {ENTRIES.index(entry)}"
    process = subprocess.Popen(["bash", "-c", limited], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        output, why = process.communicate(timeout=TIME_LIMIT_S)[0], f"FAULT the process ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        output, why = process.communicate()[0], f"not finished after {TIME_LIMIT_S} s"
    lines = [line for line in output.splitlines() if line.startswith("{")]
    row = Row(**json.loads(lines[-1])) if lines else Row(entry.name, entry.source, entry.batch)
    if not row.numbers and not row.refusal:
        row.refusal = why
    return row


def table(rows: list[Row]) -> str:
    """The page with all rows and what they add up to."""
    predicted = sum(row.h100_s is not None for row in rows)
    run = [row.numbers for row in rows if row.numbers]
    wrong = sum(numbers.startswith("DIFFERENT") for numbers in run)
    head = (
        "# The zoo\n\n"
        f"Of {len(rows)} named models, {predicted} are captured and predicted ({predicted / max(len(rows), 1):.0%}), {len(run)} also"
        f" run here, and {len(run) - wrong} of these compute the numbers of plain PyTorch with the baseline and with TurboDL.\n\n"
        "`make zoo` writes this page. Weights and batches are random; transformers' models are smaller than their defaults. *Captured* is"
        " processor time on this machine. *H100* is a predicted step of the baseline. *Numbers* is the largest relative difference of"
        " gradients, and of parameters after five steps of float32.\n\n"
        "| model | source | batch | input | captured (s) | ops | H100 (ms) | numbers, or why not |\n|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(map(_line, rows))


def _line(row: Row) -> str:
    captured = "" if row.capture_s is None else f"{row.capture_s:.1f}"
    predicted = "" if row.h100_s is None else f"{row.h100_s * 1e3:.2f}"
    why = " ".join((row.numbers or row.refusal).split())[:240].replace("|", "\\|")
    cells = (row.name, row.source, str(row.batch), row.inputs[:60], captured, str(row.ops or ""), predicted, why)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
