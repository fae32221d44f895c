"""The app's server answers its own pages on this machine and nobody else."""

import socket

import pytest
from starlette.datastructures import Headers

from tests.support.app_server import running_app
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
        ("evil.example", "http://evil.example"),
        ("127.0.0.1", "http://evil.example"),
        ("localhost:8501", "http://localhost:3000"),
        ("localhost", "null"),
    ],
)
def test_the_websocket_heeds_host_and_origin(port, host, origin):
    assert status(port, "/_stcore/stream", f"Host: {host}", f"Origin: {origin}", *WEBSOCKET) == 403


def test_two_hosts_or_none_are_refused():
    assert own_request(Headers(raw=[(b"host", b"localhost")]))
    assert own_request(Headers(raw=[(b"host", b"[::1]:8501"), (b"origin", b"http://[::1]:8501")]))
    assert not own_request(Headers(raw=[(b"host", b"localhost"), (b"host", b"evil.example")]))
    assert not own_request(Headers(raw=[]))
