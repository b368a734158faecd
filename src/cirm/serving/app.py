"""The HTTP interface: `/predict`, `/health`, `/metrics`, `/openapi.json` and a page."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import anyio
import anyio.to_thread
import pandas as pd
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from cirm import __version__
from cirm.data.cell_errors import InvalidCellError
from cirm.model.csv_writer import escape_spreadsheet_table_cells, format_table_as_csv
from cirm.serving.api_description import build_openapi_description
from cirm.serving.measurements import RequestMetrics
from cirm.serving.request_rows import (
    CONTENT_TYPES,
    InvalidRequestError,
    parse_request_rows,
)
from cirm.serving.served_model import ServedModelFile, format_predictions_for_json
from cirm.serving.try_page import build_prediction_form_page

OPEN_PATHS = ("/", "/health")  # they say nothing about the model's columns
PATHS = (*OPEN_PATHS, "/predict", "/metrics", "/openapi.json")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
}
DRAINED = 8  # times the allowed size that is read and dropped of a body too large


@dataclass(frozen=True)
class RequestSizeLimits:
    """How much one request may hold: rows, and bytes of its body."""

    rows: int = 10_000
    bytes: int = 10 * 2**20


def create_prediction_server_app(
    served: ServedModelFile,
    token: str = "",
    limits: RequestSizeLimits = RequestSizeLimits(),  # noqa: B008  frozen
    hosts: Collection[str] = (),
) -> FastAPI:
    """Return an ASGI application that serves a model."""
    endpoints = PredictionServerEndpoints(served, limits, token)
    app = FastAPI(
        title="cirm",
        version=__version__,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
    )
    app.add_api_route("/", endpoints.show_prediction_form_page, methods=["GET"])
    app.add_api_route("/health", endpoints.report_server_health, methods=["GET"])
    app.add_api_route("/predict", endpoints.predict, methods=["POST"])
    app.add_api_route("/metrics", endpoints.report_prometheus_metrics, methods=["GET"])
    app.add_api_route("/openapi.json", endpoints.describe, methods=["GET"])
    app.add_exception_handler(InvalidRequestError, _respond_to_refused_request)
    app.add_exception_handler(HTTPException, _respond_to_http_error)
    app.add_exception_handler(500, _respond_to_internal_error)
    guard = RequestAccessMiddleware(endpoints.measurements, token, hosts)
    app.middleware("http")(guard.forward_or_refuse_request)
    return app


class PredictionServerEndpoints:
    """What the server answers, by path.

    Everything that touches the model runs in one thread, in the order of arrival:
    predictions take all of a core, and the model may be replaced between them.
    """

    def __init__(
        self, served: ServedModelFile, limits: RequestSizeLimits, token: str
    ) -> None:
        self.served, self.limits, self.has_token = served, limits, bool(token)
        self.measurements = RequestMetrics()
        self._queue = anyio.CapacityLimiter(1)

    async def show_prediction_form_page(self) -> Response:
        "Show a page with a form to enter a row and see its prediction."
        return HTMLResponse(_get_cached_prediction_form_page())

    async def report_server_health(self) -> Response:
        "Report whether the server works, and which model it uses."
        await self._run_in_model_thread(self.served.reload_model_if_file_changed)
        current, problem = self.served.current, self.served.problem
        content = {
            "status": "stale" if problem else "ok",
            "fingerprint": current.fingerprint,
            "loaded": current.time,
            "version": __version__,
        }
        return JSONResponse(content | ({"problem": problem} if problem else {}))

    async def report_prometheus_metrics(self) -> Response:
        """Return counts in the text format of Prometheus."""
        self.measurements.record_model_in_use(self.served)
        return Response(
            self.measurements.format_for_prometheus(), media_type=CONTENT_TYPE_LATEST
        )

    async def describe(self) -> Response:
        """Describe the interface, with the columns of the model."""
        await self._run_in_model_thread(self.served.reload_model_if_file_changed)
        model, limits = self.served.current.model, self.limits
        how, has_token = self.served.how, self.has_token
        return JSONResponse(
            build_openapi_description(model, limits.rows, how, has_token)
        )

    async def predict(self, request: Request) -> Response:
        """Predict the rows of a request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in CONTENT_TYPES or "content-encoding" in request.headers:
            problem = (
                "the body of the request is compressed"
                if kind in CONTENT_TYPES
                else f"the header Content-Type of the request is {kind!r}"
            )
            raise InvalidRequestError(
                415,
                f"{problem}. Send the rows as JSON or CSV, not compressed, with the "
                f"header Content-Type: {' or '.join(CONTENT_TYPES)}.",
            )
        body = await read_request_body(request, self.limits.bytes)
        wants_csv = "text/csv" in request.headers.get("accept", "")
        return await self._run_in_model_thread(
            self._predict_request_body, body, kind, wants_csv
        )

    def _predict_request_body(
        self, body: bytes, kind: str, wants_csv: bool
    ) -> Response:
        self.served.reload_model_if_file_changed()
        schema = self.served.current.model.schema
        rows, fill = self.limits.rows, self.served.how.fill_missing
        frame = parse_request_rows(body, kind, schema, rows, fill)
        predictions, notes = self._predict_rows_of_table(frame)
        self.measurements.count_rows(frame, predictions, schema)
        if wants_csv:
            text = format_table_as_csv(
                escape_spreadsheet_table_cells(predictions), ",", True
            )
            return Response(text, media_type="text/csv")
        content = {
            "fingerprint": self.served.current.fingerprint,
            "predictions": format_predictions_for_json(predictions),
            "notes": notes,
        }
        return JSONResponse(content)

    def _predict_rows_of_table(
        self, frame: pd.DataFrame
    ) -> tuple[pd.DataFrame, list[str]]:
        try:
            return self.served.predict(frame)
        except InvalidCellError as error:
            raise InvalidRequestError(
                422, str(error), error.row, error.column
            ) from None
        except ValueError as error:
            raise InvalidRequestError(422, str(error)) from None

    async def _run_in_model_thread(
        self,
        work: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        return await anyio.to_thread.run_sync(work, *arguments, limiter=self._queue)


class RequestAccessMiddleware:
    """Checks who asks, measures every request, and adds headers to every answer."""

    def __init__(
        self, measurements: RequestMetrics, token: str, hosts: Collection[str]
    ) -> None:
        self.measurements, self.hosts = measurements, frozenset(hosts)
        self._token = token.encode()

    async def forward_or_refuse_request(
        self, request: Request, pass_on: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer a request, or refuse it."""
        start, status = time.perf_counter(), 500
        path = request.url.path if request.url.path in PATHS else "other"
        try:
            response = self._find_reason_to_refuse(request) or await pass_on(request)
            status = response.status_code
            response.headers.update(HEADERS)
            return response
        finally:
            seconds = time.perf_counter() - start
            self.measurements.count_http_request(path, status, seconds)

    def _find_reason_to_refuse(self, request: Request) -> Response | None:
        if self.hosts and request.url.hostname not in self.hosts:
            text = (
                "this server does not answer requests for the host "
                f"{request.url.hostname!r}. Send the request to localhost."
            )
            return _make_error_response(421, text)
        if not self._token or request.url.path in OPEN_PATHS:
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = secrets.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and is_right:
            return None
        text = (
            "the access token is missing or wrong. Send the header "
            "`Authorization: Bearer TOKEN`."
        )
        return _make_error_response(401, text, {"WWW-Authenticate": "Bearer"})


async def read_request_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request; one that is too large is refused."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= max_bytes:
            parts.append(part)
        elif size > DRAINED * max_bytes:
            break
    if size > max_bytes:
        raise InvalidRequestError(
            413,
            f"the body of the request is larger than {max_bytes:,} bytes. Send fewer "
            "rows at a time, or start the server with a larger --max-bytes.",
        )
    return b"".join(parts)


@cache
def _get_cached_prediction_form_page() -> str:
    return build_prediction_form_page()


async def _respond_to_refused_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRequestError)
    return _make_error_response(
        error.status, str(error), row=error.row, column=error.column or None
    )


async def _respond_to_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = (
        f"{error.detail}: {request.method} {request.url.path!r}. Use POST /predict, or "
        "GET /, /health, /metrics or /openapi.json."
    )
    return _make_error_response(error.status_code, text, error.headers)


async def _respond_to_internal_error(_: Request, __: Exception) -> Response:
    return _make_error_response(
        500,
        (
            "an error occurred in the server. See the log of the server for the "
            "reason, then send the request again."
        ),
    )


def _make_error_response(
    status: int,
    message: str,
    headers: Any = None,  # noqa: ANN401  a mapping or None
    **place: int | str | None,
) -> Response:
    error = {"status": status, "message": message, "row": None, "column": None}
    return JSONResponse({"error": error | place}, status, headers)
