"""Run all benchmarks, or the named ones, each in a separate process.

python -m tools
    [engine|startup|accuracy|ablation|bppsa|devices|efficiencies|products|coverage|published|preset-links|plain-pytorch
     |strategy-numerics|unseen|protocols|watching|transformers|ratios|fit-h100]...
"""

import subprocess
import sys

MODULES = {
    "engine": "bench_engine", "startup": "startup", "accuracy": "accuracy", "ablation": "ablation", "bppsa": "bppsa",
    "devices": "devices", "efficiencies": "efficiencies", "products": "fit_products", "coverage": "coverage", "published": "published",
    "preset-links": "preset_links", "plain-pytorch": "plain_pytorch", "strategy-numerics": "strategy_numerics", "unseen": "unseen",
    "protocols": "protocols", "watching": "watching", "transformers": "transformers", "ratios": "ratios",
    "fit-h100": "fit_h100",
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
        status = status or subprocess.run([sys.executable, "-m", f"tools.{MODULES[name]}"], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
