"""Columns become features once, by the first environment, and stay what they are."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm.data.columns import ColumnEncoding, TableEncoding
from tests.data.sentences import has_remedy


def encoded(first, later=None, **settings):
    """Feature names and values of a later table, encoded as the first one."""
    encoding = TableEncoding.fit(pd.DataFrame(first), **settings)
    values = encoding.encode(pd.DataFrame(first if later is None else later))
    return encoding.features, values.tolist()


def kind(values, **settings):
    return ColumnEncoding.fit(pd.Series(values, name="a"), **settings).kind


def test_numbers_have_mean_zero_and_deviation_one_in_the_first_environment():
    values = TableEncoding.fit(frame := pd.DataFrame({"a": [1.0, 2.0, 6.0]})).encode(
        frame
    )
    assert values.mean().item() == pytest.approx(0, abs=1e-6)
    assert values.std().item() == pytest.approx(1)


def test_later_numbers_keep_the_first_environments_scale():
    _, values = encoded({"a": ["0", "2"]}, {"a": ["0", "200"]})
    assert values == [[-1.0], [199.0]]


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e200])
def test_the_unit_of_a_column_does_not_matter(factor):
    numbers = np.array([1.0, 5.0, -2.0, 7.5])
    plain = encoded({"a": numbers}, {"a": numbers + 1})[1]
    scaled = encoded({"a": numbers * factor}, {"a": (numbers + 1) * factor})[1]
    assert np.allclose(plain, scaled, atol=1e-6)


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_columns_does_not_matter(order):
    frame = pd.DataFrame(
        {"a": [1, 2], "b": ["x", "y"], "c": [True, False], "d": [3, 9]}
    )
    encoding = TableEncoding.fit(frame)
    other = TableEncoding.fit(frame[order])
    assert other == encoding
    assert other.encode(frame[order]).tolist() == encoding.encode(frame).tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "2.5", "-3e2"], "number"),
        ([1, 2, 3], "number"),
        ([decimal.Decimal("1.5"), decimal.Decimal("2")], "number"),
        (["true", "False", "TRUE"], "boolean"),
        ([True, False], "boolean"),
        ([True, None, False], "boolean"),
        (["2024-01-31", "2024-02-01T12:00:00"], "date"),
        (pd.to_datetime(["2024-01-31", "2024-02-01"]), "date"),
        ([datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)], "date"),
        (["a", "b", "a"], "category"),
        (["10", "A1", "B2"], "category"),
        (pd.Categorical([1, 2, 1]), "category"),
        (["x", "x"], "constant"),
        ([5, 5], "constant"),
        (["", "NA", None], "constant"),
        ([1e16, 1e16], "constant"),
        ([f"patient {n}" for n in range(51)], "identifier"),
    ],
)
def test_what_a_column_holds_is_seen_from_its_values(values, expected):
    assert kind(values) == expected


def test_numbers_declared_as_codes_become_categories():
    names, values = encoded({"a": [1.0, 2.0]}, {"a": ["2", "7"]}, categories=["a"])
    assert names == ("a=1", "a=2", "a: other")
    assert values == [[0, 1, 0], [0, 0, 1]]


def test_an_identifier_that_is_declared_a_category_is_kept():
    names = [f"patient {n}" for n in range(60)]
    assert kind(names) == "identifier"
    assert kind(names, is_category=True) == "category"
    said = ColumnEncoding("a", "identifier").describe()
    assert "(`cirm fit --category a` keeps it)" in said


def test_codes_keep_their_leading_zeros():
    assert encoded({"a": ["01", "1"]}, categories=["a"])[0][:2] == ("a=01", "a=1")


def test_missing_numbers_become_the_first_median_and_are_marked():
    first = {"a": ["1", "", "3", "8", "NA"]}
    names, values = encoded(first, {"a": [np.nan, 3.0]})
    assert names == ("a", "a: missing")
    assert values[0] == [values[1][0], 1.0]
    assert values[1][1] == 0.0


@pytest.mark.parametrize("gaps", [False, True])
def test_columns_of_floats_are_encoded_together_as_one_by_one(gaps):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(5, 3, (5000, 3)), columns=["z", "b", "k"])
    table.insert(1, "site", np.where(table["z"] > 5, "north", "south"))
    table.insert(3, "a", table["b"].astype("Float64"))
    table["spare"] = 1e300  # too large for single precision, and not used
    used = table.drop(columns="spare")
    if gaps:
        used.loc[rng.random(5000) < 0.01, ["k", "a"]] = None
    encoding = TableEncoding.fit(used)
    expected = [c.encode(used[c.name]) for c in encoding.columns]
    found = encoding.encode(used.assign(spare=table["spare"]))
    assert np.array_equal(found, np.concatenate(expected, 1))
    used.loc[4321, "z"] = 1e300
    with pytest.raises(ValueError, match=r"1e\+300.*too large"):
        encoding.encode(used)


def test_gaps_that_begin_later_are_filled_and_add_no_feature():
    names, values = encoded({"a": [1, 3, 8]}, {"a": [None, 3]})
    assert names == ("a",)
    assert values[0] == values[1]


def test_missing_categories_are_a_category_of_their_own():
    names, values = encoded({"a": ["x", "y", None]}, {"a": ["?", "new", "y"]})
    assert names == ("a=x", "a=y", "a: other", "a: missing")
    assert values == [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]]


def test_categories_missing_only_later_count_as_other():
    assert encoded({"a": ["x", "y"]}, {"a": [""]})[1] == [[0, 0, 1]]


def test_booleans_are_zero_or_one_and_gaps_the_more_frequent():
    _, values = encoded({"a": ["true", "true", "false", ""]}, {"a": ["", "false", "1"]})
    assert values == [[1, 1], [0, 0], [1, 0]]


def test_dates_count_in_days_whatever_form_they_come_in():
    first = {"a": ["2024-01-01", "2024-01-03"]}
    later = {"a": pd.to_datetime(["2024-01-05"]).tz_localize("Europe/Berlin")}
    assert encoded(first)[1] == [[-1.0], [1.0]]
    assert encoded(first, later)[1][0][0] == pytest.approx(3 - 1 / 24)


def test_a_constant_column_is_left_out_but_its_gaps_are_marked():
    names, values = encoded({"a": [5, 5], "b": [5, None], "c": [1, 2]})
    assert names == ("b: missing", "c")
    assert [row[0] for row in values] == [0.0, 1.0]


def test_only_the_most_frequent_of_many_categories_have_features():
    texts = [f"t{n:02}" for n in range(60)] * 2 + ["t59", "t58"]
    names, values = encoded({"a": texts}, {"a": ["t59", "t57"]})
    assert len(names) == 51
    assert values[0][:50].count(1) == 1 and values[1][50] == 1
    assert values[1][-1] == 1.0


def test_every_row_has_one_category():
    _, values = encoded({"a": ["x", "", "y"]}, {"a": ["x", "y", "", "z"]})
    assert [sum(row) for row in values] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (
            [1, 2],
            ["3", "old"],
            "row 1: column 'a' has the value 'old', which is not a number. Corr",
        ),
        (
            [1, 2],
            ["3", "inf"],
            "row 1: column 'a' has the value 'inf', which is too large",
        ),
        (
            [1, 2],
            [1, 1e60],
            r"the value '1e\+60', .* too large \(mean 1.5, standard deviation 0.5",
        ),
        ([True, False], ["maybe"], "row 0: column 'a' .* is not true or false"),
        ([True, False], [2], "the value '2', which is not true or false"),
        (["2024-01-01", "2024-01-02"], ["1/2/24"], "which is not an ISO 8601 date"),
        (["2024-01-01", "2024-01-02"], [5], "'5', which is not an ISO 8601 date"),
        (
            [1, 2],
            pd.to_datetime(["2024-01-01"]),
            "value '2024.*, which is not a number",
        ),
    ],
)
def test_a_later_value_of_another_kind_is_named(first, later, message):
    encoding = TableEncoding.fit(pd.DataFrame({"a": first}))
    with pytest.raises(ValueError, match=message):
        encoding.encode(pd.DataFrame({"a": later}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["1", "2", "x"],
            "row 2: column 'a' has the value 'x', .* number, unlike most",
        ),
        (
            ["2024-01-01", "2024-01-02", "x"],
            "row 2: column 'a' .* ISO 8601 date, unlike most",
        ),
        ([1.0, np.inf], "row 1: column 'a' has the value 'inf', which is not a finite"),
        ([[1], [2]], "row 0: column 'a' .* which is neither a number nor text"),
    ],
)
def test_a_value_that_no_column_should_hold_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        TableEncoding.fit(pd.DataFrame({"a": values}))


def test_lacking_columns_are_named_and_further_ones_ignored():
    encoding = TableEncoding.fit(pd.DataFrame({"a": [1, 2], "b": [1, 2]}))
    with pytest.raises(ValueError, match=r"no column 'b'\. The columns are 'a', 'c'"):
        encoding.encode(pd.DataFrame({"a": [1], "c": [1]}))
    assert encoding.encode(pd.DataFrame({"c": [9], "b": [1], "a": [2]})).shape == (1, 2)


def test_a_column_that_is_there_twice_is_refused():
    with pytest.raises(ValueError, match=r"two columns are called 'a'\. Rename"):
        TableEncoding.fit(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))


def test_each_column_is_described_in_words():
    frame = pd.DataFrame(
        {"a": [1.0, 3.0], "b": ["x", None], "c": [True, False], "d": ["x", "y"]}
    )
    assert TableEncoding.fit(frame).describe().splitlines() == [
        "a: number (mean 2, standard deviation 1)",
        "b: ignored: constant at the first place; with an indicator of missing values",
        "c: true or false",
        "d: category (2 values, and one for all others)",
    ]


CELLS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        ["1", "2.5", "inf", "NA", "", "true", "false", "2024-01-01", "1e309"]
    ),
)


@given(st.lists(CELLS, min_size=1, max_size=6), st.lists(CELLS, min_size=1, max_size=4))
def test_any_text_is_encoded_or_refused_in_one_sentence(first, later):
    try:
        encoding = TableEncoding.fit(pd.DataFrame({"a": pd.Series(first, dtype=str)}))
        values = encoding.encode(pd.DataFrame({"a": pd.Series(later, dtype=str)}))
    except ValueError as error:
        assert "column 'a'" in str(error)
        assert has_remedy(error)
    else:
        assert np.isfinite(values).all()
        assert values.shape == (len(later), len(encoding.features))


def fit_column(counts, **options):
    text = [name for name, count in counts.items() for _ in range(count)]
    return TableEncoding.fit(pd.DataFrame({"a": text}), **options).columns[0]


def test_frequent_short_names_are_stored_as_they_are():
    column = fit_column({"never smoked": 5, "current": 9, "F": 1})
    assert column.categories == ("F", "current", "never smoked")
    assert column.hashed == ()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Anna Schmidt", 4),
        ("+49 170 123456", 50),
        ("anna@example.org", 50),
        ("she lives in the third house", 50),
        ("x" * 41, 50),
        ("#a1b2c3", 50),
    ],
)
def test_rare_names_and_free_text_are_known_by_a_digest(name, count):
    column = fit_column({name: count, "other": 10, "zz": 10})
    assert name not in column.categories
    assert len(column.hashed) == 1
    rows = pd.DataFrame({"a": [name, "other", "zz", "new", *column.categories]})
    encoded = TableEncoding((column,)).encode(rows)
    plain = TableEncoding((fit_column({name: 60, "other": 60, "zz": 60}),))
    place = sorted([name, "other", "zz"]).index(name)
    assert encoded[0].argmax() == place
    assert encoded[3].argmax() == 3
    assert encoded[4 + place].argmax() == 3  # the digest itself is no name
    assert len(plain.features) == encoded.shape[1]


def test_names_of_a_column_with_many_are_all_known_by_digests():
    column = fit_column({f"ward {n}": 6 for n in range(60)})
    assert len(column.hashed) == len(column.categories) == 50


FIRST, LAST = ("Anna", "Bo", "Cem", "Dee"), ("Huber", "McNeil", "O'Hara", "Wolf")


@pytest.mark.parametrize(
    ("column", "categories", "is_private"),
    [
        ("doctor", ["Huber", "Wolf"], True),
        ("Referring_Physician", ["Huber", "Wolf"], True),
        ("last name", ["Huber", "Wolf"], True),
        ("x", [f"{first} {last}" for first in FIRST for last in LAST], True),
        ("x", [f"{last}, {first}" for first in FIRST for last in LAST], True),
        ("ward", ["Intensive Care", "General Surgery", "Outpatients"], False),
        ("patient_type", ["Inpatient", "Outpatient"], False),
        ("drug_name", ["Aspirin", "Ibuprofen"], False),
        ("city", ["New York", *(f"Town{n}" for n in "abcdefghijklmnop")], False),
    ],
)
def test_names_of_persons_are_known_by_digests(column, categories, is_private):
    frame = pd.DataFrame({column: categories * 9})
    found = TableEncoding.fit(frame).columns[0]
    assert len(found.hashed) == (len(categories) if is_private else 0)


def test_without_names_the_features_are_the_same():
    frame = pd.DataFrame({"a": ["never", "current", "former", None] * 10})
    named, hashed = TableEncoding.fit(frame), TableEncoding.fit(frame, names=False)
    assert not set(hashed.columns[0].categories) & {"never", "current", "former"}
    later = pd.DataFrame({"a": ["former", "new", None, "never", "current"]})
    assert hashed.encode(later).tolist() == named.encode(later).tolist()
    assert "3 names are hashed" in hashed.describe()


def test_a_rare_name_is_hashed_and_counted():
    frame = pd.DataFrame({"a": ["common"] * 30 + ["Quetzalcoatl"] * 3})
    assert "; 1 name is hashed" in TableEncoding.fit(frame).describe()
