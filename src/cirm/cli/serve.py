"""`cirm serve`: predictions over HTTP."""

from __future__ import annotations

import os
import signal
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.options import (
    Abstain,
    FillMissing,
    KeyFile,
    Level,
    ModelLearner,
    PredictionSets,
)

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

TOKEN_VARIABLE = "CIRM_TOKEN"
LEAST_TOKEN = 16  # characters; fewer could be guessed
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
GRACE = 10  # seconds for requests that are under way when the server is stopped
PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
EXAMPLES = options.format_examples_for_command_help(
    "cirm serve triage.cirm",
    "cirm serve triage.cirm --host 0.0.0.0 --port 8080 --token-file token.txt",
)


def serve_model(
    model: Annotated[
        Path,
        typer.Argument(help="Model file, for example triage.cirm.", show_default=False),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. A token is required unless only this machine "
            "can reach the address."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help="Port to listen on; 0 chooses a free one.",
        ),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a token that clients must send. It can also be set by the "
            f"environment variable {TOKEN_VARIABLE}.",
            show_default="no token",
        ),
    ] = None,
    max_rows: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help=("Largest number of rows that a request may contain."),
        ),
    ] = 10_000,
    max_bytes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Largest size of a request, in bytes."),
    ] = 10 * 2**20,
    sets: PredictionSets = False,
    level: Level = 0.9,
    abstain: Abstain = None,
    fill_missing: FillMissing = False,
    learner: ModelLearner = None,
    key: KeyFile = None,
) -> None:
    """Serve predictions over HTTP until Ctrl-C.

    POST /predict takes rows as JSON or CSV and returns predictions; /health says which
    model is in use, /metrics has counts for Prometheus, /openapi.json describes the
    interface, and / is a page to try a row by hand. If the model file is replaced,
    for example by `cirm update`, the next request uses the new model.
    """
    from cirm.cli.output import print_lines_to_stderr
    from cirm.cli.progress import show_progress_of_single_step

    check_serving_packages_are_installed()
    token, secret = read_http_access_token(token_file), options.read_signing_key(key)
    if not token and not is_loopback_address(host):
        raise ValueError(
            f"--host: anyone who can reach the address {host!r} could use the model. "
            "Set a token that clients must send, with --token-file or the "
            f"environment variable {TOKEN_VARIABLE}, or leave out --host."
        )
    with show_progress_of_single_step("loading the model"):
        from cirm.serving.app import RequestSizeLimits, create_prediction_server_app
        from cirm.serving.served_model import PredictionOptions, ServedModelFile

        options.limit_torch_to_one_thread()
        how = PredictionOptions(fill_missing, sets, level, abstain)
        served = ServedModelFile(model, {"learner": learner, "key": secret}, how)
        hosts = (*LOCAL_NAMES, host) if is_loopback_address(host) else ()
        app = create_prediction_server_app(
            served, token, RequestSizeLimits(max_rows, max_bytes), hosts
        )
    listener = open_listening_socket(host, port)
    shown = f"[{host}]" if ":" in host else host
    print_lines_to_stderr(
        f"Serving {model} at http://{shown}:{listener.getsockname()[1]}/ until Ctrl-C"
    )
    run_server_until_stopped(create_uvicorn_server(app), listener)
    print_lines_to_stderr("Stopped.")


def check_serving_packages_are_installed() -> None:
    """Raise an error if the packages of the extra `serve` are not installed."""
    from importlib.util import find_spec

    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ValueError(
            f"serve: the package {missing[0]} is not installed. Install what serving "
            "needs with `pip install 'cirm[serve]'`."
        )


def read_http_access_token(path: Path | None) -> str:
    """Return the token in a file or else in the environment; empty without one."""
    if path is None:
        token, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not token:
            return ""
    else:
        where = f"--token-file: the file {str(path)!r}"
        if not path.is_file():
            raise ValueError(
                f"--token-file: there is no file {str(path)!r}. Check the path."
            )
        token = path.read_bytes()[:4096].decode("ascii", "replace").strip()
    if len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable()):
        raise ValueError(
            f"{where} must contain a token of at least {LEAST_TOKEN} letters, digits "
            "and punctuation marks. Create one, for example with `openssl rand -hex "
            "32`."
        )
    return token


def is_loopback_address(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"--host and --port: the server cannot listen at {host}:{port}: {reason}. "
            "Choose another port; --port 0 finds a free one."
        ) from None


def create_uvicorn_server(app: FastAPI) -> uvicorn.Server:
    """Return a server of an application; `run` starts it."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # /metrics counts requests, and nothing of them is kept
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        lifespan="off",
        ws="none",
    )
    return uvicorn.Server(config)


def run_server_until_stopped(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until an interrupt or a request to end; requests under way are answered."""
    # uvicorn sends itself the signal again after it has stopped; that is no error here.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        listener.close()
