"""What a server answers, over HTTP: predictions, refusals, health and metrics."""

import io
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from cirm import fit, load, predict, save, update
from cirm.serving.app import RequestSizeLimits
from tests.serving.conftest import QUICK
from tests.serving.server import Client, make_table, serve

TOKEN = "a-token-that-nobody-guesses"


def test_rows_as_json_get_what_predict_gives(client, model_file):
    table = make_table(20, seed=1).drop(columns="outcome")
    rows = json.loads(table.to_json(orient="records", date_format="iso"))
    status, content = client.predict(rows)
    assert status == 200
    wanted = predict(load(model_file), table, probabilities=True)
    for found, (_, own) in zip(content["predictions"], wanted.iterrows(), strict=True):
        assert found["patient"] == own["patient"]
        assert found["prediction"] == own["prediction"]
        assert found["probability"] == own["probability"]
        assert found["uncertainty"] == own["uncertainty"] > 0
        assert found["probabilities"]["ill"] == own["probability of ill"]


def test_rows_as_csv_get_the_same_and_csv_on_request(client):
    table = make_table(5, seed=2)
    text = table.to_csv(index=False)
    status, content = client.predict(text, "text/csv; charset=utf-8")
    assert status == 200
    assert [one["patient"] for one in content["predictions"]] == [*table["patient"]]
    tsv = table.to_csv(index=False, sep="\t")
    assert client.predict(tsv, "text/tab-separated-values") == (status, content)
    headers = {"Content_Type": "text/csv", "Accept": "text/csv"}
    _, headers, answer = client.ask("POST", "/predict", text, **headers)
    assert headers["content-type"].startswith("text/csv")
    frame = pd.read_csv(io.BytesIO(answer))
    assert [*frame["probability"]] == [
        one["probability"] for one in content["predictions"]
    ]


def test_an_identifier_comes_back_as_it_was_sent(client, row):
    large = 12345678901234567890
    _, content = client.predict([row, row | {"patient": large}])
    assert [one["patient"] for one in content["predictions"]] == [17, large]


def test_null_is_a_missing_value_and_a_new_category_is_other(client, row):
    rows = [row | {"age": None, "smoker": None}, row | {"scanner": "portable"}]
    status, content = client.predict(rows)
    assert status == 200 and len(content["predictions"]) == 2


def test_a_json_number_needs_no_decimal_comma(tmp_path):
    table = make_table(80)[["age", "outcome"]]
    text = (table["age"] + 0.5).map(lambda age: f"{age:.1f}".replace(".", ","))
    path = tmp_path / "model.cirm"
    save(fit(table.assign(age=text), "outcome", learner="erm", settings=QUICK), path)
    with serve(path) as client:
        (row, empty), other = [{"age": 40.5}, {"age": ""}], [{"age": "40,5"}]
        status, content = client.predict([row, empty])
        assert status == 200, content
        wanted = client.predict(other)[1]["predictions"][0]
        assert content["predictions"][0] == wanted


def test_a_row_without_its_identifier_needs_no_note(client, row):
    del row["patient"]
    status, content = client.predict([row])
    assert status == 200 and content["notes"] == []


def test_columns_that_the_model_does_not_know_are_named(client, row):
    status, content = client.predict([row | {"colour": "red"}])
    assert status == 200
    (note,) = content["notes"]
    assert "because the model was fitted without them: 'colour'" in note


def test_regression_has_intervals(tmp_path, values):
    save(fit(values(60, 0), "y", learner="steady"), tmp_path / "m.cirm")
    with serve(tmp_path / "m.cirm") as client:
        status, content = client.predict([{"dose": 10.5, "other": 0}])
        api = json.loads(client.get("/openapi.json")[2])
    assert status == 200
    (found,) = content["predictions"]
    assert found["low"] < found["prediction"] < found["high"]
    assert set(api["components"]["schemas"]["Prediction"]["required"]) <= set(found)


BAD_CELLS = [
    ({"age": "old"}, "age", "has the value 'old', which is not a number"),
    ({"age": True}, "age", "has the value 'true', which is not a number"),
    ({"age": 10**400}, "age", "which is too large"),
    ({"age": [1]}, "age", "has a list. Send a number, text"),
    ({"scanner": {"a": 1}}, "scanner", "has an object. Send a number, text"),
    ({"smoker": "perhaps"}, "smoker", "which is not true or false"),
    ({"visit": "soon"}, "visit", "which is not an ISO 8601 date"),
]


@pytest.mark.parametrize(("change", "column", "message"), BAD_CELLS)
def test_a_bad_value_is_refused_with_row_and_column(
    client, row, change, column, message
):
    status, content = client.predict([row, row | change, row])
    assert status == 422
    assert (content["error"]["row"], content["error"]["column"]) == (2, column)
    assert (
        content["error"]["message"].startswith("row 2: ")
        and message in content["error"]["message"]
    )


def test_a_value_that_is_not_there_is_refused_with_row_and_column(client, row):
    short = {name: value for name, value in row.items() if name != "marker"}
    status, content = client.predict([row, short])
    assert (status, content["error"]["row"], content["error"]["column"]) == (
        422,
        2,
        "marker",
    )
    status, content = client.predict("age,scanner\n5,new\n", "text/csv")
    assert (status, content["error"]["row"], content["error"]["column"]) == (
        422,
        None,
        "marker",
    )


def test_with_fill_missing_a_row_may_lack_columns(model_file):
    with serve(model_file, fill_missing=True) as client:
        status, content = client.predict([{"marker": 2.0}, {"age": 40}])
        api = json.loads(client.get("/openapi.json")[2])
    assert status == 200 and len(content["predictions"]) == 2
    assert api["components"]["schemas"]["Row"]["required"] == []


def test_sets_and_abstention_are_those_of_predict(model_file):
    table = make_table(40, seed=1)
    how = {"sets": True, "level": 0.8, "abstain": 0.2}
    wanted = predict(load(model_file), table, **how)
    with serve(model_file, **how) as client:
        _, content = client.predict(table.to_csv(index=False), "text/csv")
        api = json.loads(client.get("/openapi.json")[2])
    found = content["predictions"]
    assert [one["set"] for one in found] == wanted["set"].tolist()
    labels = wanted["prediction"].astype(object)
    assert [one["prediction"] for one in found] == labels.where(
        labels.notna(), None
    ).tolist()
    prediction = api["components"]["schemas"]["Prediction"]["properties"]
    assert prediction["prediction"]["enum"] == ["ill", "well", None]
    assert "set" in prediction


HEAD = "age,marker,scanner,smoker,visit\n"
BAD_BODIES = [
    ("{", "application/json", 400, "not valid JSON"),
    ("[{}, NaN]", "application/json", 400, "NaN is not a valid number in JSON"),
    ("[" * 5000, "application/json", 400, "not valid JSON"),
    ("{}", "application/json", 422, "the body of the request is an object, not a list"),
    ("[]", "application/json", 422, "the request contains no rows"),
    ("[1]", "application/json", 422, "row 1: the row is a number, not an object"),
    ("", "text/csv", 422, "the column 'age' is missing"),
    (HEAD, "text/csv", 422, "the request contains no rows"),
    (HEAD + "1,2\n", "text/csv", 422, "row 1: the row has 2 cells, but there are 5"),
    (HEAD + '1,2,"new,true,2024-01-01\n', "text/csv", 400, "the CSV cannot be read"),
    ("age,age\n1,2\n", "text/csv", 422, "column 2 has the same name as another column"),
    ("age,\n1,2\n", "text/csv", 422, "column 2 has no name"),
    (b"\xff\xfe", "text/csv", 400, "not text in the encoding UTF-8"),
    (
        "age\n1\n",
        "text/plain",
        415,
        "the header Content-Type of the request is ",
    ),
    (b"\x1f\x8b", "application/json", 400, "not valid JSON"),
    ("[" + "{}," * 50 + "{}]", "application/json", 413, "more than 50 rows"),
    (HEAD + "1,2,new,true,2024-01-01\n" * 51, "text/csv", 413, "more than 50 rows"),
    ('["' + "x" * 30_000 + '"]', "application/json", 413, "larger than 20,000 bytes"),
]


@pytest.mark.parametrize(("body", "kind", "status", "message"), BAD_BODIES)
def test_a_bad_body_is_refused_in_one_sentence(client, body, kind, status, message):
    found, content = client.predict(body, kind)
    assert found == status
    assert message in content["error"]["message"]


def test_a_packed_body_is_refused(client, row):
    status, content = client.predict([row], Content_Encoding="gzip")
    assert (
        status == 415
        and "the body of the request is compressed" in content["error"]["message"]
    )


def test_other_paths_and_methods_are_refused_as_json(client):
    for method, path, wanted in (("GET", "/nope", 404), ("GET", "/predict", 405)):
        status, _, body = client.ask(method, path)
        assert status == wanted
        assert "Use POST /predict" in json.loads(body)["error"]["message"]


def test_a_page_elsewhere_cannot_reach_a_local_server_by_another_name(client):
    status, _, body = client.get("/health", Host="evil.example")
    assert (
        status == 421
        and "the host 'evil.example'" in json.loads(body)["error"]["message"]
    )
    assert client.get("/health", Host="localhost:1")[0] == 200


def test_the_description_names_the_columns_of_the_model(client):
    api = json.loads(client.get("/openapi.json")[2])
    assert api["openapi"].startswith("3.1")
    schemas = api["components"]["schemas"]
    kinds = {
        name: own.get("type") for name, own in schemas["Row"]["properties"].items()
    }
    assert kinds == {
        "age": ["number", "null"],
        "marker": ["number", "null"],
        "scanner": ["string", "null"],
        "smoker": ["boolean", "null"],
        "visit": ["string", "null"],
        "patient": None,
    }
    assert schemas["Row"]["properties"]["scanner"]["examples"] == ["new", "old"]
    assert schemas["Row"]["required"] == sorted(kinds.keys() - {"patient"})
    prediction = schemas["Prediction"]["properties"]["prediction"]
    assert prediction["enum"] == ["ill", "well"]
    body = api["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["maxItems"] == 50


def read_metrics(client):
    """The value of each metric by its name and labels."""
    text = client.get("/metrics")[2].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)
    }


def test_metrics_count_requests_errors_rows_and_unusual_values(model_file, row):
    with serve(model_file) as client:
        client.predict([row, row | {"age": None}, row | {"scanner": "portable"}])
        client.predict([row | {"age": "old"}])
        client.get("/nope")
        metrics = read_metrics(client)
        _, headers, _ = client.get("/metrics")
    assert headers["content-type"].startswith("text/plain; version=")
    assert metrics['cirm_requests_total{path="/predict",status="200"}'] == 1
    assert metrics['cirm_errors_total{path="/predict",status="422"}'] == 1
    assert metrics['cirm_errors_total{path="other",status="404"}'] == 1
    assert metrics['cirm_request_seconds_count{path="/predict"}'] == 2
    assert metrics['cirm_request_seconds_bucket{le="+Inf",path="/predict"}'] == 2
    assert metrics["cirm_rows_total"] == 3
    assert metrics['cirm_missing_values_total{column="age"}'] == 1
    assert metrics['cirm_missing_values_total{column="marker"}'] == 0
    assert metrics['cirm_new_categories_total{column="scanner"}'] == 1
    predicted = [v for name, v in metrics.items() if "cirm_predictions_total" in name]
    assert sum(predicted) == 3
    assert metrics["cirm_model_file_unusable"] == 0


def test_with_a_token_nothing_about_the_model_is_told_without_it(model_file, row):
    with serve(model_file, TOKEN) as client:
        strangers = [Client(client.address), Client(client.address, TOKEN + "x")]
        for stranger in strangers:
            status, content = stranger.predict([row])
            assert (
                status == 401 and "Authorization: Bearer" in content["error"]["message"]
            )
            for path in ("/metrics", "/openapi.json"):
                status, headers, _ = stranger.get(path)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
            status, _, page = stranger.get("/")
            assert status == 200 and b"marker" not in page
            assert json.loads(stranger.get("/health")[2])["status"] == "ok"
        assert client.predict([row])[0] == 200
        assert "security" in json.loads(client.get("/openapi.json")[2])


def test_the_next_request_uses_a_model_that_was_replaced(model_file, tmp_path, row):
    path = tmp_path / "model.cirm"
    shutil.copy(model_file, path)
    with serve(path) as client:
        before = client.predict([row])[1]
        save(update(load(path), make_table(60, seed=3)), path)
        after = client.predict([row])[1]
        assert after["fingerprint"] != before["fingerprint"]
        assert after["predictions"] != before["predictions"]
        wanted = predict(load(path), pd.DataFrame([row]))
        assert after["predictions"][0]["probability"] == wanted["probability"][0]
        health = json.loads(client.get("/health")[2])
        assert (health["status"], health["fingerprint"]) == ("ok", after["fingerprint"])


@pytest.mark.parametrize("way", ["damaged", "removed"])
def test_a_file_that_cannot_be_used_leaves_the_model_in_use(
    model_file, tmp_path, row, way
):
    path = tmp_path / "model.cirm"
    shutil.copy(model_file, path)
    with serve(path) as client:
        before = client.predict([row])
        if way == "damaged":
            other = tmp_path / "other"
            other.write_bytes(path.read_bytes()[:-50])
            os.replace(other, path)
        else:
            path.unlink()
        assert client.predict([row]) == before
        health = json.loads(client.get("/health")[2])
        assert health["status"] == "stale"
        assert "loaded before is still in use" in health["problem"]
        assert read_metrics(client)["cirm_model_file_unusable"] == 1
        shutil.copy(model_file, path)
        assert json.loads(client.get("/health")[2])["status"] == "ok"


@pytest.mark.integration
def test_many_clients_at_once_get_their_own_answers(model_file, row):
    rows = [row | {"patient": n, "marker": n / 50} for n in range(100)]
    with (
        serve(model_file, limits=RequestSizeLimits()) as client,
        ThreadPoolExecutor(20) as pool,
    ):
        alone = [one["probability"] for one in client.predict(rows)[1]["predictions"]]
        answers = list(pool.map(lambda own: client.predict([own]), rows))
    assert {status for status, _ in answers} == {200}
    found = [content["predictions"][0] for _, content in answers]
    assert [one["patient"] for one in found] == list(range(100))
    assert [one["probability"] for one in found] == pytest.approx(alone, abs=2e-6)


def test_answers_are_not_cached_and_the_page_loads_nothing_else(client):
    status, headers, page = client.get("/")
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    text = page.decode()
    assert not re.search(r'\b(src|href)="', text)
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src &#x27;none&#x27;" in policy
    assert "connect-src &#x27;self&#x27;" in policy
    assert "unsafe" not in policy.partition("script-src")[2]


def test_a_model_of_images_is_refused(tmp_path):
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for n in range(6):
            Image.new("L", (8, 8), 40 * n).save(tmp_path / "images" / name / f"{n}.png")
    settings = {"epochs": 1, "hidden": (2,)}
    model = fit(tmp_path / "images", learner="erm", settings=settings, side=8)
    save(model, tmp_path / "m.cirm")
    with pytest.raises(
        ValueError, match="trained on images, but only models of tables"
    ):
        serve(tmp_path / "m.cirm").__enter__()
