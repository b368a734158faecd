"""Shortcuts that the learner was not developed on show which rows are marked."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.other_shortcuts import KINDS, add_shortcut


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_of_a_shortcut_tell_marked_rows(kind):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=4000)})
    is_marked = rng.random(4000) < 0.5
    made = add_shortcut(rows, is_marked, kind, rng)
    if kind == "none":
        assert made.equals(rows)
        return
    assert made.columns[0] == "x"
    assert all(name.startswith("zz") for name in made.columns[1:])
    readings = {
        "ordinal": lambda: made["zz"] > 2,
        "missing": lambda: made["zz"].isna(),
        "ratio": lambda: made["zz"] > made["zz_size"],
        "tails": lambda: made["zz"] > 0,
        "copies": lambda: made[["zz0", "zz1", "zz2"]].sum(axis=1) > 1,
        "word": lambda: made["zz"] < "d",
    }
    assert np.mean(readings[kind]() == is_marked) > 0.8
