"""Tables are read in chunks, each cell as it would be if all were read at once."""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cirm
from cirm import fit, predict
from cirm.data import schema as schemas
from cirm.data import table_files
from cirm.data.encoded_chunks import prefetch_items_in_thread
from cirm.data.open_sources import open_sources_of_user_data
from cirm.data.rows import read_rows
from cirm.data.schema_inference import RandomRowReservoir, ReadOptions, infer_schema
from cirm.data.sources import ignore_progress_message
from cirm.data.table_files import read_table_file_in_chunks
from tests.data.sentences import has_remedy

FEW = {"hidden": (2,), "epochs": 1}
CELLS = st.sampled_from(
    [
        *("", "NA", "1", "2.5", "-3e2", "inf", "x", "y", " z ", "true", "False", "01"),
        *("2024-01-31", "?", '"a,b"', '"line\nbreak"', "é", "1e400", "0"),
    ]
)


def joined(path, numbers=(), rows=3):
    return pd.concat(list(read_table_file_in_chunks(path, numbers, rows)))


def test_chunks_make_up_the_whole(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{n},x{n % 3}\n" for n in range(10)))
    parts, whole = joined(path), joined(path, rows=100)
    assert parts.equals(whole)
    assert parts["a"].tolist() == [str(n) for n in range(10)]
    assert parts.index.tolist() == [(str(path), n) for n in range(1, 11)]


def test_columns_of_numbers_are_read_as_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\nNA,y\n?,z\n 4.5 ,w\n")
    parts = joined(path, ["a"], rows=100)
    assert parts["b"].tolist() == ["x", "y", "z", "w"]
    numbers = pd.to_numeric(parts["a"], errors="coerce").tolist()
    assert numbers[0] == 1
    assert numbers[3] == 4.5
    assert np.isnan(numbers[1:3]).all()


def test_text_in_a_column_of_numbers_is_kept_from_there_on(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,x\n" * 7 + "high,y\n" + "2,z\n" * 3)
    parts = joined(path, ["a"])
    assert [str(v) for v in parts["a"]] == ["1.0"] * 6 + ["1", "high", "2", "2", "2"]
    assert parts.index.get_level_values("row").tolist() == list(range(1, 12))


def test_parquet_is_read_in_chunks_too(tmp_path):
    frame = pd.DataFrame({"a": range(10), "b": list("abcdefghij")})
    frame.to_parquet(tmp_path / "t.parquet")
    assert joined(tmp_path / "t.parquet").reset_index(drop=True).equals(frame)


def test_the_size_of_chunks_does_not_matter(files, monkeypatch):
    whole = fit(files / "clinic-a.csv", "outcome", settings=FEW)
    monkeypatch.setattr(table_files, "CHUNK_ROWS", 37)
    parts = fit(files / "clinic-a.csv", "outcome", settings=FEW)
    assert parts.schema == whole.schema
    shown = [predict(m, files / "clinic-b.csv")["probability"] for m in (whole, parts)]
    assert np.allclose(*shown, atol=1e-5)


def test_a_reservoir_decides_how_columns_of_many_rows_are_encoded(clinic, monkeypatch):
    frame = clinic(400, 0.9, 0)
    whole = fit(frame, "outcome", settings=FEW).schema.treatment.encoding
    monkeypatch.setattr(schemas, "SCHEMA_ROWS", 200)
    part = fit(frame, "outcome", settings=FEW).schema.treatment.encoding
    assert [c.kind for c in part.columns] == [c.kind for c in whole.columns]
    for a, b in zip(part.columns, whole.columns, strict=True):
        assert abs(a.centre - b.centre) <= 0.3 * b.scale


def test_a_reservoir_is_a_uniform_draw_of_all_rows():
    kept = RandomRowReservoir(100)
    for start in range(0, 1000, 50):
        frame = pd.DataFrame({"a": np.arange(start, start + 50)})
        assert kept.offer_rows_of_environments(frame, np.full(50, "a", object)).all()
    assert len(kept.frame) == 100
    assert kept.frame["a"].tolist() == kept.rows.tolist()
    assert 400 < kept.frame["a"].mean() < 600


def test_items_are_made_ahead_of_their_use_in_order():
    made = []

    def items():
        for n in range(5):
            made.append(n)
            yield n

    later = prefetch_items_in_thread(items())
    assert next(later) == 0
    for _ in range(100):
        if len(made) > 1:
            break
        time.sleep(0.01)
    assert len(made) > 1
    assert list(later) == [1, 2, 3, 4]


def test_an_error_ahead_is_raised_where_items_are_used():
    def items():
        yield 1
        raise ValueError("late")

    later = prefetch_items_in_thread(items())
    assert next(later) == 1
    with pytest.raises(ValueError, match="late"):
        next(later)


def test_whoever_stops_using_items_leaves_no_thread_behind():
    before = threading.active_count()
    later = prefetch_items_in_thread(range(10**9))
    next(later)
    later.close()
    assert threading.active_count() == before


@settings(max_examples=60)
@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(CELLS, min_size=width + 1, max_size=width + 1), max_size=12
        )
    )
)
def test_any_table_is_learned_or_refused_in_one_sentence(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    width = len(table[0]) if table else 2
    header = ",".join([f"c{n}" for n in range(width - 1)] + ["y"])
    path.write_text("\n".join([header, *map(",".join, table)]) + "\n", "utf-8")
    try:
        model = fit(path, "y", settings=FEW)
    except ValueError as error:
        assert has_remedy(error)
    else:
        assert len(predict(model, path)) == model.history[0].rows


def test_what_is_no_data_is_refused():
    with pytest.raises(FileNotFoundError, match=r"no file or folder 'none\.csv'"):
        open_sources_of_user_data("none.csv")
    with pytest.raises(
        ValueError, match=r"data: an object of type list cannot be read\. Give"
    ):
        open_sources_of_user_data([])


def test_a_row_crosses_six_files_on_its_way_to_a_tensor(tmp_path):
    path, package = tmp_path / "a.csv", str(Path(cirm.__file__).parent)
    pd.DataFrame({"age": [30, 50, 40], "sex": list("fmf"), "ill": list("nyn")}).to_csv(
        path, index=False
    )
    schema = infer_schema(
        open_sources_of_user_data(path), ReadOptions(target="ill")
    ).schema
    crossed = set()

    def holds_rows(value):
        if isinstance(value, tuple):
            return any(map(holds_rows, value))
        return isinstance(value, pd.DataFrame | np.ndarray | torch.Tensor)

    def record_file(frame, event, value):
        name = frame.f_code.co_filename
        if event == "return" and name.startswith(package) and holds_rows(value):
            crossed.add(name[len(package) + 1 :])

    threading.setprofile(record_file)
    sys.setprofile(record_file)
    try:
        rows = read_rows(
            open_sources_of_user_data(path), schema, ignore_progress_message
        )
        rows.build_environment("a", rows.rows["a"], schema, 1).take_all(1)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert crossed == {
        "data/table_files.py",
        "data/encoded_chunks.py",
        "data/columns.py",
        "data/values.py",
        "data/rows.py",
        "environments.py",
    }
