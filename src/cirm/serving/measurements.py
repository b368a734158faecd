"""What `/metrics` says, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from datetime import datetime

import pandas as pd
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from cirm.data.columns import ColumnEncoding
from cirm.data.schema import Schema
from cirm.data.values import is_word_for_missing_value
from cirm.serving.served_model import ServedModelFile

LATENCIES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # seconds


class RequestMetrics:
    """Counts of requests, rows and unusual values since the server started."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._create_counter("requests", "Requests.", "path", "status")
        self.errors = self._create_counter(
            "errors", "Requests that were refused or failed.", "path", "status"
        )
        self.seconds = Histogram(
            "cirm_request_seconds",
            "Time until a request was answered.",
            ["path"],
            registry=self.registry,
            buckets=LATENCIES,
        )
        self.rows = self._create_counter("rows", "Rows that were predicted.")
        self.predictions = self._create_counter(
            "predictions", "Rows by predicted class.", "prediction"
        )
        self.missing = self._create_counter(
            "missing_values", "Missing values.", "column"
        )
        self.categories = self._create_counter(
            "new_categories",
            ("Number of values whose category the model does not know."),
            "column",
        )
        self.loaded = Gauge(
            "cirm_model_loaded_timestamp_seconds",
            "When the model in use was loaded.",
            registry=self.registry,
        )
        self.stale = Gauge(
            "cirm_model_file_unusable",
            "1 if the model file was replaced by one that cannot be used.",
            registry=self.registry,
        )

    def count_http_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, str(status)).inc()
        if status >= 400:
            self.errors.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def count_rows(
        self, frame: pd.DataFrame, predictions: pd.DataFrame, schema: Schema
    ) -> None:
        """Count rows with what was predicted for them, and hints at a drift."""
        self.rows.inc(len(frame))
        if schema.task.classes:
            labels = Tally(predictions["prediction"].dropna().tolist())
            for label, count in labels.items():
                self.predictions.labels(str(label)).inc(count)
        encoding = schema.treatment.encoding
        used = [c for c in encoding.columns if c.features] if encoding else []
        for column in used:
            missing, unknown = _count_missing_and_unknown_values(column, frame)
            self.missing.labels(column.name).inc(missing)
            if column.kind == "category":
                self.categories.labels(column.name).inc(unknown)

    def record_model_in_use(self, served: ServedModelFile) -> None:
        """Note which model is in use, and whether its file could be loaded."""
        time = datetime.fromisoformat(served.current.time)
        self.loaded.set(time.timestamp())
        self.stale.set(bool(served.problem))

    def format_for_prometheus(self) -> bytes:
        """Return all counts in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _create_counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"cirm_{name}", description, labels, registry=self.registry)


def _count_missing_and_unknown_values(
    column: ColumnEncoding, frame: pd.DataFrame
) -> tuple[int, int]:
    """Return how many values are missing, and how many are categories not known."""
    if column.name not in frame:
        return len(frame), 0
    counts = Tally(map(str, frame[column.name].tolist()))
    missing = {text for text in counts if is_word_for_missing_value(text)}
    unclear = [text for text in counts if text not in {*column.categories, *missing}]
    total = sum(counts[text] for text in missing)
    if column.kind != "category" or not unclear:
        return total, 0
    is_other = column.encode(pd.Series(unclear))[:, len(column.categories)] > 0
    flags = zip(unclear, is_other.tolist(), strict=True)
    return total, sum(counts[text] for text, flag in flags if flag)
