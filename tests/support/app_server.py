"""Runs the app on a free port of this machine, with a data folder of its own."""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.places import ROOT, SUPPORT
from ui.app.model import start_command


@contextmanager
def running_app(
    home: Path,
    reports: Sequence[Path] = (),
    traces: Sequence[Path] = (),
    server: Path = SUPPORT / "browser_server.py",
    models: Sequence[str] = (),
) -> Iterator[int]:
    """The port of the app, which offers `reports`, `traces` and users' `models`.

    `home` receives its log and its data. `server` serves the pages.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = start_command(port, reports, server, traces, models)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(home)}
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).close()
                    break
                except OSError:
                    assert server.poll() is None, (home / "log").read_text()
                    time.sleep(0.5)
            yield port
        finally:
            server.terminate()
            server.wait(timeout=20)
