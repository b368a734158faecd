"""Measure how long a table of a million rows takes, and how much memory.

    python tests/model/scale.py FOLDER [ROWS [LEARNER]]

Makes FOLDER/big.csv if it is not there, and prints the figures of docs/guide.md. Not a
test: it takes minutes.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

PORTION = 100_000


def portion(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """25 numbers, of which five tell a little, two categories, a boolean and a date."""
    outcome = rng.integers(0, 2, rows)
    columns: dict[str, object] = {
        f"lab{n:02d}": (
            10 ** (n % 5) * (rng.normal(size=rows) + 0.4 * (n < 5) * outcome)
        ).round(4)
        for n in range(25)
    }
    days = pd.to_timedelta(rng.integers(0, 900, rows), "D")
    columns |= {
        "sex": rng.choice(["f", "m"], rows),
        "ward": rng.choice(list("abcdefgh"), rows),
        "smoker": rng.random(rows) < 0.3,
        "visit": (pd.Timestamp("2020-01-01") + days).strftime("%Y-%m-%d"),
        "outcome": outcome,
    }
    return pd.DataFrame(columns)


def make(path: Path, rows: int) -> None:
    """Write the table, a portion at a time."""
    rng = np.random.default_rng(1)
    for start in range(0, rows, PORTION):
        frame = portion(rng, min(PORTION, rows - start))
        mode = "a" if start else "w"
        frame.to_csv(path, index=False, mode=mode, header=not start)


def measured(*words: str) -> None:
    """Run a command and print its seconds, how busy the machine is, and its memory."""
    began = time.perf_counter()
    program = Path(sys.executable).with_name("cirm")
    process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    print(
        f"cirm {' '.join(words)}: {time.perf_counter() - began:.1f} s, of which "
        f"{used.ru_utime + used.ru_stime:.1f} s of processor time; "
        f"{used.ru_maxrss / 1e6:.2f} GB at most; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def from_memory(data: Path, model: Path) -> None:
    """Print how many rows of a DataFrame are predicted in a second."""
    from cirm import load, predict

    frame, loaded = pd.read_csv(data, nrows=300_000), load(model)
    for _ in range(3):
        began, used = time.perf_counter(), time.process_time()
        predict(loaded, frame)
        spent = time.perf_counter() - began, time.process_time() - used
        print(
            f"predict(model, frame): {len(frame) / spent[0]:,.0f} rows a second, "
            f"{len(frame) / spent[1]:,.0f} in one of processor time; "
            f"load {os.getloadavg()[0]:.1f}"
        )


def main() -> None:
    """The table, the commands, and a prediction from memory."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    data, model = folder / "big.csv", folder / "big.cirm"
    if not data.exists():
        make(data, int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
    words = ["--model", str(model)]
    fit = ["fit", str(data), "--target", "outcome", *words, "--overwrite"]
    measured(*fit, *(["--learner", sys.argv[3]] if len(sys.argv) > 3 else []))
    out = ["--out", str(folder / "predictions.csv"), "--overwrite"]
    measured("predict", str(data), *words, *out)
    from_memory(data, model)


if __name__ == "__main__":
    main()
