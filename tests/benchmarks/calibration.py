"""The time of `schedcast calibrate` for ResNet-50 at 64 px, batch 16, three strategies. Target: less than 3 minutes on 2 cores."""

import os
import subprocess
import sys
import tempfile
import time


def main() -> None:
    """Calibrate into a new profile and print the time."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["calibrate", "--model", "resnet50", "--batch", "16", "--image-size", "64", "-o", f"{folder}/profile.json"]
        begin = time.perf_counter()
        command = [sys.executable, "-c", "from ui.cli import main; main()", *arguments]
        subprocess.run(command, check=True, env=os.environ | {"SCHEDCAST_CACHE": folder})
        print(f"calibration: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
