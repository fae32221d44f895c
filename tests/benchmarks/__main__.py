"""Run all benchmarks, or the named ones, each in a process of its own.

python -m tests.benchmarks
    [engine|startup|profile|calibration|accuracy|ablation|bppsa|csr|devices|replay|op-latency|efficiencies|collectives|ranks|ddp
     |products|coverage|published|preset-links|division-search|canvas-timeline|app-waits|plain-pytorch|strategy-numerics|unseen|settle|protocols|watching|transformers]...
"""

import subprocess
import sys

MODULES = {
    "engine": "bench_engine", "startup": "startup", "profile": "profile_load", "calibration": "calibration",
    "accuracy": "accuracy", "ablation": "ablation", "bppsa": "bppsa", "devices": "devices", "replay": "replay_traces",
    "op-latency": "op_latency", "efficiencies": "efficiencies", "csr": "csr_products", "collectives": "collectives",
    "ranks": "ranks", "ddp": "ddp", "coverage": "coverage", "published": "published", "preset-links": "preset_links",
    "division-search": "division_search", "canvas-timeline": "canvas_timeline", "app-waits": "app_waits",
    "plain-pytorch": "plain_pytorch", "strategy-numerics": "strategy_numerics", "unseen": "unseen", "settle": "settle",
    "products": "fit_products", "protocols": "protocols", "watching": "watching", "transformers": "transformers",
}  # fmt: skip


def main() -> int:
    """Run the benchmarks named on the command line, or all. Returns the status of the first failure."""
    chosen = sys.argv[1:] or list(MODULES)
    unknown = [name for name in chosen if name not in MODULES]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; expected some of: {', '.join(MODULES)}", file=sys.stderr)
        return 2
    status = 0
    for name in chosen:
        print(f"== {name}", flush=True)
        status = status or subprocess.run([sys.executable, "-m", f"tests.benchmarks.{MODULES[name]}"], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
