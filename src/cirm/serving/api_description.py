"""The OpenAPI description of the server, with the columns of the model."""

from __future__ import annotations

from typing import Any

from cirm import __version__
from cirm.data.columns import ColumnEncoding
from cirm.model.model import Model
from cirm.serving.served_model import PredictionOptions

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
OPTIONAL_TEXT: Json = {"type": ["string", "null"]}
NUMBER: Json = {"type": ["number", "null"]}
ERROR: dict[str, Json] = {
    "status": {"type": "integer"},
    "message": TEXT,
    "row": NUMBER,
    "column": OPTIONAL_TEXT,
}
TYPES = {"number": "number", "boolean": "boolean", "date": "string"}


def build_openapi_description(
    model: Model, max_rows: int, options: PredictionOptions, has_token: bool
) -> Json:
    """Return the description in OpenAPI 3.1."""
    schemas = {
        "Row": build_json_schema_of_row(model, options.fill_missing),
        "Prediction": build_json_schema_of_prediction(model, options),
        "Error": _build_json_schema_of_object(
            error=_build_json_schema_of_object(**ERROR)
        ),
    }
    description: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": f"Predictions of {model.schema.target.name}",
            "version": __version__,
        },
        "paths": {
            "/predict": {"post": _describe_predict_operation(max_rows)},
            "/health": _describe_get_operation(
                "Whether the server works", "application/json"
            ),
            "/metrics": _describe_get_operation("Counts for Prometheus", "text/plain"),
        },
        "components": {"schemas": schemas},
    }
    if has_token:
        scheme = {"type": "http", "scheme": "bearer"}
        description["components"]["securitySchemes"] = {"token": scheme}
        description["security"] = [{"token": []}]
    return description


def build_json_schema_of_row(model: Model, fill_missing: bool) -> Json:
    """Return the JSON schema of a row: a property for each column that is used."""
    encoding = model.schema.treatment.encoding
    columns = encoding.columns if encoding else ()
    properties = {c.name: build_json_schema_of_column(c) for c in columns if c.features}
    required = [] if fill_missing else list(properties)
    for name in model.schema.ids:
        properties[name] = {
            "description": "identifier: not an input, but copied to the prediction"
        }
    return {"type": "object", "properties": properties, "required": required}


def build_json_schema_of_column(column: ColumnEncoding) -> Json:
    """Return the JSON schema of a column; null stands for a missing value."""
    text = column.describe().removeprefix(f"{column.name}: ")
    schema: Json = {"type": [TYPES.get(column.kind, "string"), "null"]}
    schema["description"] = text
    if column.kind == "date":
        schema["format"] = "date"
    elif column.kind == "number":
        schema["examples"] = [column.fill]
    elif column.kind == "boolean":
        schema["examples"] = [bool(column.fill)]
    elif column.kind == "category":
        names = column.categories
        known = [name for n, name in enumerate(names) if n not in column.hashed]
        schema["examples"] = known
    return schema


def build_json_schema_of_prediction(model: Model, options: PredictionOptions) -> Json:
    """Return the JSON schema of a prediction."""
    classes = model.task.classes
    if not classes:
        return _build_json_schema_of_object(
            prediction={"type": "number"}, low=NUMBER, high=NUMBER, uncertainty=NUMBER
        )
    shares = {name: {"type": "number"} for name in classes}
    abstains = options.abstain is not None
    return _build_json_schema_of_object(
        prediction={"enum": [*classes, *([None] if abstains else [])]},
        probability={"type": "number"},
        uncertainty=NUMBER,
        **({"set": TEXT} if options.sets else {}),
        probabilities={"type": "object", "properties": shares},
    )


def _describe_predict_operation(max_rows: int) -> Json:
    row, prediction = (
        _build_json_schema_reference("Row"),
        _build_json_schema_reference("Prediction"),
    )
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": max_rows}
    predictions = {"type": "array", "items": prediction}
    notes = {"type": "array", "items": TEXT}
    answer = _build_json_schema_of_object(
        fingerprint=TEXT, predictions=predictions, notes=notes
    )
    csv = {name: {"schema": TEXT} for name in ("text/csv", "text/tab-separated-values")}
    refusals = {
        400: "The body of the request cannot be read",
        401: "The access token is missing or wrong",
        413: "The request has too many rows or bytes",
        415: "Another content type",
        422: "A row or column of the request cannot be used",
    }
    return {
        "summary": "Predict rows",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": rows}, **csv},
        },
        "responses": {
            "200": {
                "description": "One prediction for each row, in the same order",
                "content": {
                    "application/json": {"schema": answer},
                    "text/csv": {"schema": TEXT},
                },
            },
            **{
                str(status): _describe_error_response(text)
                for status, text in refusals.items()
            },
        },
    }


def _describe_get_operation(summary: str, content_type: str) -> Json:
    content: Json = {content_type: {"schema": {}}}
    answer = {"200": {"description": summary, "content": content}}
    return {"get": {"summary": summary, "responses": answer}}


def _describe_error_response(description: str) -> Json:
    content = {"application/json": {"schema": _build_json_schema_reference("Error")}}
    return {"description": description, "content": content}


def _build_json_schema_of_object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _build_json_schema_reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
