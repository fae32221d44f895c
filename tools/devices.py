"""Data parallelism over two groups of this CPU's cores: predicted against measured, over links of 0.5 and 2 GB/s and without a limit.

Targets: median |error| at most 8 %, worst at most 15 %, where a target is met at max(target, 2 x A/A spread); exact bytes
moved; peak bytes of each device within 10 %. Every run is printed. With SCHEDCAST_SAVE=FOLDER the documents are saved there.
`python -m tools.devices resnet18` runs the named models only.
"""

import statistics
import sys

from tools.accuracy import print_header, print_row, validated

MODELS = {"resnet18": (16, 64), "vgg16": (16, 32), "transformer_base": (8, 16)}
LINKS = ("copy:0.5", "copy:2", "alias")
STRATEGIES = ("data-parallel", "data-parallel:overlap=off")
MEDIAN, WORST, PEAK = 0.08, 0.15, 0.10


def main() -> None:
    """Print a row per model, link and strategy, and the pooled figures."""
    errors, missed, peaks = [], 0, []
    for model in sys.argv[1:] or MODELS:
        batch, size = MODELS[model]
        for link in LINKS:
            file = f"devices-{model}-b{batch}-{link.replace(':', '-')}"
            found = validated(model, batch, size, STRATEGIES, ("--devices", "2", "--link", link), file)
            print(f"{model}, batch {batch}, link {link}, drift {found.anchor_drift:.3f}")
            print_header()
            for row in found.ran:
                print_row(found, row)
                if row.strategy == "baseline":
                    continue
                errors.append(abs(row.scored_error))
                missed += errors[-1] > max(WORST, 2 * found.aa_spread)
                measured = row.measured_peak_bytes_by_device or {}
                of_device = {name: row.predicted_peak_bytes_by_device[name] / peak - 1 for name, peak in measured.items() if peak}
                peaks += of_device.values()
                said = ", ".join(f"{name} {error:+.1%}" for name, error in of_device.items())
                print(f"  peak bytes, predicted over measured: {said}", flush=True)
    middle, worst = statistics.median(errors), max(errors)
    print(f"median |error| {middle:.1%} (stated {MEDIAN:.0%}), worst {worst:.1%} (stated {WORST:.0%})")
    print(f"beyond the stated worst figure and the noise: {missed} of {len(errors)}")
    print(f"worst error of peak bytes {max(map(abs, peaks), default=0.0):.1%} (stated {PEAK:.0%})")


if __name__ == "__main__":
    main()
