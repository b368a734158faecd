"""A server on a free port of this machine, a client, and rows for them."""

import contextlib
import http.client
import json
import threading
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from cirm.cli.serve import LOCAL_NAMES, create_uvicorn_server, open_listening_socket
from cirm.serving.app import RequestSizeLimits, create_prediction_server_app
from cirm.serving.served_model import PredictionOptions, ServedModelFile


def make_table(rows, seed=0):
    """Rows with all kinds of columns, some of whose values are missing."""
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.5
    age = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(50, 10, rows).round(1))
    return pd.DataFrame(
        {
            "patient": [f"{seed}-{n:04d}" for n in range(rows)],
            "age": age,
            "marker": (rng.normal(size=rows) + 2 * ill).round(3),
            "scanner": np.where(rng.random(rows) < 0.5, "new", "old"),
            "smoker": rng.random(rows) < 0.3,
            "visit": pd.to_datetime("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
            "outcome": np.where(ill, "ill", "well"),
        }
    )


ROW = {
    "patient": 17,
    "age": 51.5,
    "marker": 2.5,
    "scanner": "new",
    "smoker": True,
    "visit": "2024-03-01",
}


class Client:
    """Asks a server, each time on a new connection."""

    def __init__(self, address, token=""):
        self.address, self.token = address, token

    def ask(self, method, path, body=None, **headers):
        """The status, the headers and the body of an answer."""
        parts = urlsplit(self.address)
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=15)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            named["Authorization"] = f"Bearer {self.token}"
        with contextlib.closing(link):
            link.request(method, path, body, named)
            answer = link.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def predict(self, rows, kind="application/json", **headers):
        """The status of an answer, and its content."""
        body = rows if isinstance(rows, str | bytes) else json.dumps(rows)
        status, _, text = self.ask(
            "POST", "/predict", body, Content_Type=kind, **headers
        )
        return status, json.loads(text)


@contextlib.contextmanager
def serve(path, token="", limits=RequestSizeLimits(), hosts=LOCAL_NAMES, **options):  # noqa: B008
    """Serve a model from a thread of this process."""
    served = ServedModelFile(path, {}, PredictionOptions(**options))
    app = create_prediction_server_app(served, token, limits, hosts)
    listener = open_listening_socket("127.0.0.1", 0)
    server = create_uvicorn_server(app)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}", token)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
