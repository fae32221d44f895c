"""Replays every trace in shared/data/kineto and kineto_more: simulated against recorded period and exposed communication, and its time.

python -m tests.benchmarks.replay_traces [--hta PYTHON]

`spread`: (longest − shortest) / mean of the recorded iterations. `median`: the error of the median step. `placed`: nine of ten works start
within so many microseconds of their recorded start. `load`: reading the file; `graph`: launches, streams, waits, plan;
`replay`: the engine. `--hta PYTHON` also runs HolisticTraceAnalysis' critical path analysis on the same files, by a Python that has it.
"""

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from simulator.replay.build import build_replay
from simulator.replay.compare import ReplayComparison, compare, device_part
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.replayed import typical_step
from tests.support.shared_data import shared_folder
from traces.formats.kineto import load_trace

ROUNDS = 3


def measure(paths: Sequence[Path]) -> tuple[ReplayComparison, float, int, dict[str, float]]:
    """The comparison, `placed` in seconds, the number of works without a launch, and seconds by stage (medians of `ROUNDS`)."""
    times: dict[str, list[float]] = {"load": [], "graph": [], "replay": []}
    for _ in range(ROUNDS):
        marks = [time.perf_counter()]
        recordings = [load_trace(path) for path in paths]
        marks.append(time.perf_counter())
        replay = build_replay(recordings)
        marks.append(time.perf_counter())
        timeline = simulate_replay(replay)
        marks.append(time.perf_counter())
        for stage, (begin, end) in zip(times, pairwise(marks), strict=True):
            times[stage].append(end - begin)
    stages = {stage: statistics.median(seconds) for stage, seconds in times.items()}
    starts = [{s.task: s.start_s for s in device_part(replay.plan, each).spans} for each in (replay.recorded, timeline)]
    errors = sorted(abs(starts[1][task] - start_s) for task, start_s in starts[0].items())
    placed_s = errors[9 * len(errors) // 10]
    return compare(replay, timeline), placed_s, sum(recording.unmatched for recording in recordings), stages


def row(name: str, result: ReplayComparison, placed_s: float, unmatched: int, seconds: dict[str, float]) -> str:
    """One line of the table."""
    median = result.steps[typical_step([step.measured_s for step in result.steps])]
    errors = f"{result.error:+8.3%} {median.simulated_s / median.measured_s - 1:+8.3%} {1e6 * placed_s:7.0f}"
    period = f"{1e3 * result.period_measured_s:10.3f} {result.spread:7.2%} {1e3 * result.period_simulated_s:10.3f} {errors}"
    exposed = f"{1e3 * result.exposed_measured_s:8.3f} {1e3 * result.exposed_simulated_s:8.3f}"
    stages = " ".join(f"{seconds[stage]:6.2f}" for stage in ("load", "graph", "replay"))
    return f"{name:<38} {period} {exposed} {result.kernels:7d} {len(result.streams):7d} {unmatched:9d} {stages}"


HEAD = (
    f"{'trace':<38} {'period/ms':>10} {'spread':>7} {'replayed':>10} {'error':>8} {'median':>8} {'placed':>7} {'exposed':>8} "
    f"{'replayed':>8} {'kernels':>7} {'streams':>7} {'unmatched':>9} {'load':>6} {'graph':>6} {'replay':>6}"
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hta", type=Path, help="a Python with HolisticTraceAnalysis")
    hta = parser.parse_args().hta
    folders = [folder for name in ("kineto", "kineto_more") if (folder := shared_folder(name))]
    if not folders:
        print("no shared/data/kineto beside the repository; set SCHEDCAST_SHARED")
        return
    files = [path for folder in folders for path in sorted(folder.glob("*.json*"))]
    print(HEAD)
    for path in files:
        print(row(path.name.partition(".")[0], *measure([path])), flush=True)
    for job in ("v100_dlrm", "h100_nanogpt_compiled"):
        ranks = [path for path in files if path.name.startswith(f"{job}_rank")]
        if len(ranks) > 1:
            print(row(f"{len(ranks)} ranks of {job}, joined", *measure(ranks)), flush=True)
    if hta:
        beside_hta(hta, files)


HTA = """
import json, logging, sys, time, warnings
logging.disable(logging.CRITICAL); warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
path, annotation, instance = sys.argv[1:]
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/")
loaded = time.perf_counter()
graph, found = analysis.critical_path_analysis(rank=0, annotation=annotation, instance_id=int(instance))
built = time.perf_counter()
times = [graph.node_list[node].ts for node in graph.critical_path_nodes]
total = float(sum(edge.weight for edge in graph.critical_path_edges_set))
print(json.dumps({"load": loaded - begin, "graph": built - loaded, "path": total, "span": float(max(times) - min(times))}))
"""


def beside_hta(python: Path, files: Sequence[Path]) -> None:
    """HTA's critical path of one profiler step next to ours: of the second step, the only step, or the whole trace if it has none.

    Each one's total against the span it explains: HTA's is the sum of its path's edges against the time between the path's ends, ours the
    simulated length of the same step against the recorded one.
    """
    print(f"\n{'':<36} {'HolisticTraceAnalysis':^46}   {'Schedcast':^46}")
    columns = f"{'load':>6} {'graph':>6} {'total/ms':>10} {'span/ms':>10} {'error':>8}  "
    print(f"{'trace':<36} {columns} {columns}")
    for path in files:
        result, _, _, seconds = measure([path])
        number = min(1, len(result.steps) - 1)
        step = result.steps[number]
        annotation = "ProfilerStep" if step.name.startswith("ProfilerStep") else ""
        command = [str(python), "-c", HTA, str(path), annotation, str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        try:
            found = json.loads(done.stdout.splitlines()[-1])
            theirs = _columns(found["load"], found["graph"], found["path"] / 1e3, found["span"] / 1e3)
        except (IndexError, ValueError):
            theirs = f"{(done.stderr.strip().splitlines() or ['no output'])[-1][:44]:<44}  "
        ours = _columns(seconds["load"], seconds["graph"], 1e3 * step.simulated_s, 1e3 * step.measured_s)
        print(f"{path.name.partition('.')[0]:<36} {theirs} {ours}", flush=True)


def _columns(load_s: float, graph_s: float, total_ms: float, span_ms: float) -> str:
    return f"{load_s:6.2f} {graph_s:6.2f} {total_ms:10.3f} {span_ms:10.3f} {total_ms / span_ms - 1:+8.2%}  "


if __name__ == "__main__":
    main()
