"""The app's server answers its own pages on this machine and nobody else."""

import os
import socket
import subprocess
import urllib.request

import pytest
from starlette.datastructures import Headers

from tests.support.app_server import running_app
from tests.support.processes import HANGS_S, free_port
from ui.app.model import start_command
from ui.app.this_machine import own_request

WEBSOCKET = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with running_app(tmp_path_factory.mktemp("home")) as port:
        yield port


def status(port, path, *lines):
    """The status of the answer to a raw request with these header lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())
        return int(connection.recv(4096).split()[1])


def test_names_of_this_machine_are_served(port):
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost", "localhost:9000"):
        assert status(port, "/", f"Host: {host}", "Connection: close") == 200
    own = f"Host: 127.0.0.1:{port}", f"Origin: http://127.0.0.1:{port}"
    assert status(port, "/_stcore/stream", *own, *WEBSOCKET) == 101


@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/_stcore/host-config"])
def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(port, path):
    for host in (f"evil.example:{port}", "127.0.0.1.evil.example", "evil@localhost", "localhost:1@evil.example", "0.0.0.0"):
        assert status(port, path, f"Host: {host}", "Connection: close") == 403


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("evil.example", "http://evil.example"), ("127.0.0.1", "http://evil.example"),
        ("localhost:8501", "http://localhost:3000"), ("localhost", "null"),
    ],
)  # fmt: skip
def test_the_websocket_heeds_host_and_origin(port, host, origin):
    assert status(port, "/_stcore/stream", f"Host: {host}", f"Origin: {origin}", *WEBSOCKET) == 403


def test_two_hosts_or_none_are_refused():
    assert own_request(Headers(raw=[(b"host", b"localhost")]))
    assert own_request(Headers(raw=[(b"host", b"[::1]:8501"), (b"origin", b"http://[::1]:8501")]))
    assert not own_request(Headers(raw=[(b"host", b"localhost"), (b"host", b"evil.example")]))
    assert not own_request(Headers(raw=[]))


# `schedcast ui` runs no code of the folder that it is started in.


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
