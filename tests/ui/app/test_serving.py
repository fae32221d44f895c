"""`schedcast ui` runs no code of the folder that it is started in."""

import os
import subprocess
import urllib.request

from tests.support.processes import HANGS_S, free_port
from ui.app.model import start_command

HOSTILE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nraise SystemExit('code of the current folder ran')\n"
NAMES = ("streamlit", "traces", "ui", "typer", "pandas", "click", "json")


def test_files_of_the_current_folder_replace_no_package(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name the current folder
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(start_command(port), cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        assert wait_until_healthy(server, port), (tmp_path / "log").read_text()
    finally:
        server.terminate()
        server.wait(timeout=HANGS_S)
        log.close()
    assert not (tmp_path / "ran").exists()


def wait_until_healthy(server: subprocess.Popen, port: int) -> bool:
    """Whether the server answers before it ends."""
    for _ in range(4 * HANGS_S):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
                return answer.read() == b"ok"
        except OSError:
            try:
                server.wait(timeout=0.25)
            except subprocess.TimeoutExpired:
                continue
            return False
    return False


def test_the_launcher_loads_schedcasts_packages(tmp_path):
    """Even if a user's PYTHONPATH has files with their names."""
    for name in ("traces", "ui"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    *python, launcher = start_command(1)[:3]
    done = subprocess.run(
        [*python, launcher, "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "version" in done.stdout) == (0, True), done.stderr
    assert not (tmp_path / "ran").exists()
