"""Any bytes that are called a table or an archive are read, or refused in one line."""

import csv
import io
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cirm.data.encoded_chunks import (
    find_missing_numeric_cells,
    iterate_encoded_rows_of_source,
)
from cirm.data.open_sources import open_sources_of_user_data
from cirm.data.rows import read_rows
from cirm.data.schema_inference import ReadOptions, infer_schema
from cirm.model.warnings import list_input_warnings, warn_of_leaking_columns

COUNTER = itertools.count()
CELLS = st.one_of(
    st.sampled_from(
        (
            *("", "0", "1", "-1", "1e308", "-1e308", "1e-320", "inf", "nan", "NA", "?"),
            *("yes", "true", "FALSE", "2024-01-31", "9999-12-31", "0001-01-01", "1,5"),
            *("1 000", "=1", '"', "a\nb", "\x00", "\x1b[2J", "٣", "1_0", "0x10", " x "),
        )
    ),
    st.floats().map(str),
    st.text(max_size=6),
)
NAMES = st.sampled_from(
    ["a", "b", "y", "env", "", " a ", "y\n", "=c", "a: missing", "id"]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def read_all(path, options):
    """Read a file as `fit` and `predict` do; an error must be one line."""
    try:
        sources = open_sources_of_user_data(path)
        draft = infer_schema(sources, options)
        rows = read_rows(sources, draft.schema)
        warn_of_leaking_columns(draft)
        for chunk in iterate_encoded_rows_of_source(sources[0], draft.schema):
            assert np.isfinite(chunk.inputs).all()
            many = [0] * 30  # of the same row, enough for warnings
            missing = find_missing_numeric_cells(chunk.frame, draft.schema)
            missing = None if missing is None else missing[many]
            list_input_warnings(draft.schema, chunk.inputs[many], missing)
        assert rows.store.count == len(rows.targets) > 0
        assert rows.targets.isfinite().all()
    except ValueError as error:
        assert "\n" not in str(error).strip()
        assert str(error).endswith(".")


OPTIONS = st.builds(
    ReadOptions,
    target=st.just("y"),
    environment=st.sampled_from(["", "env"]),
    task=st.sampled_from(["auto", "classification", "regression"]),
    categories=st.sampled_from([(), ("a",)]),
    names=st.booleans(),
)


@given(
    st.lists(NAMES, min_size=1, max_size=5),
    st.lists(st.lists(CELLS, min_size=1, max_size=5), max_size=8),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
    OPTIONS,
)
def test_tables_of_any_cells(folder, names, rows, separator, encoding, options):
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows([[*names, "y"], *rows])
    path = folder / f"{next(COUNTER)}.csv"
    path.write_bytes(text.getvalue().encode(encoding, "replace"))
    read_all(path, options)
    path.unlink()


@given(
    st.lists(
        st.tuples(CELLS, CELLS, st.sampled_from(["x", "y", "0", "1.5"])), min_size=2
    ),
    OPTIONS,
)
@example([("1e308", "", "0"), ("-1e308", "1", "1.5")], ReadOptions("y"))
@example([("", "1.79e308", "x")] + [("", "0", "y")] * 5, ReadOptions("y"))
def test_tables_whose_rows_fit_the_header(folder, rows, options):
    path = folder / f"{next(COUNTER)}.csv"
    frame = pd.DataFrame(rows, columns=["a", "b", "y"]).assign(env="e")
    frame.to_csv(path, index=False, errors="replace")
    read_all(path, options)
    path.unlink()


@given(st.binary(max_size=400), OPTIONS)
def test_tables_of_any_bytes(folder, content, options):
    path = folder / f"{next(COUNTER)}.csv"
    path.write_bytes(b"a,b,y,env\n" + content)
    read_all(path, options)
    path.write_bytes(content)
    read_all(path, options)
    path.unlink()


DTYPES = [
    "f4",
    "f8",
    "f2",
    "i1",
    "u1",
    "i8",
    "?",
    "U3",
    "S3",
    "c8",
    "M8[D]",
    ">f4",
    ">U2",
]


@given(
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
    OPTIONS,
)
def test_archives_of_any_arrays(folder, kind, target, shape, count, random, options):
    rng = np.random.default_rng(random.randrange(2**32))
    arrays = {
        "X": rng.integers(0, 3, shape).astype(kind),
        "y": rng.integers(0, 3, count).astype(target),
    }
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = bytearray(file.getvalue())
    for _ in range(random.randrange(4)):  # some of them damaged
        content[random.randrange(len(content))] = random.randrange(256)
    path = folder / f"{next(COUNTER)}.npz"
    path.write_bytes(content)
    read_all(path, ReadOptions(task=options.task))
    path.unlink()
