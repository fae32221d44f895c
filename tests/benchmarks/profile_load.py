"""The time to load a profile of 20,000 keys: `python -m tests.benchmarks.profile_load`. Target: about 0.2 s."""

import random
import tempfile
import time
from pathlib import Path

from traces.documents.profile import Identity, KeyCost, Profile, Stats

KEYS = 20_000


def main():
    """Save a profile of random costs and load it five times. Print the size of the file and the median time."""
    draw = random.Random(0)

    def stats() -> Stats:
        return Stats.from_samples([draw.random() * 1e-3 for _ in range(8)])

    arguments = '[{"$": 0},{"$": 1},null,[1,1],[1,1],[1,1],false,[0,0],1]'
    costs = {
        f"aten.convolution.default|f32[{i},64,56,56]|f32[64,64,3,3]|{arguments}@132": KeyCost(
            stats(), stats(), "conv", draw.random() * 1e9, draw.random() * 1e8, 1024, 2, draw.random() * 1e-5, "profiler"
        )
        for i in range(KEYS)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Profile(identity=Identity(kind="gpu"), costs=costs).save(Path(folder) / "p.json")
        times = []
        for _ in range(5):
            start = time.perf_counter()
            loaded = Profile.load(path)
            times.append(time.perf_counter() - start)
            assert loaded.costs == costs
        print(
            f"{KEYS} keys, {path.stat().st_size / 1e6:.1f} MB: {sorted(times)[2]:.3f} s (five loads {', '.join(f'{t:.3f}' for t in times)})"
        )


if __name__ == "__main__":
    main()
