"""A web server on this machine, for tests of downloads."""

import functools
import http.server
import threading
from pathlib import Path

import pytest


@pytest.fixture
def serve(monkeypatch):
    """Serve folders over HTTP on this machine; gives the address of each."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    def start(folder: Path) -> str:
        handler = functools.partial(Handler, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
