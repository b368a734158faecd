import struct
import zlib

import pytest

from cirm.records import RunRecord, ScoreRecord, TrainingCurveRecord

LEARNERS = {
    "erm": (86.4, 12.7),
    "irmv1": (85.3, 9.9),
    "irmg": (86.3, 12.8),
    "ewc": (87.4, 15.7),
    "gem": (87.3, 16.2),
    "mer": (87.3, 14.8),
    "vcl": (89.3, 24.9),
    "vclc": (89.2, 24.6),
    "c-bvirm": (71.3, 29.6),
    "c-virmg": (69.1, 27.9),
    "c-virmv1": (51.4, 46.0),
    "cumulative irmv1": (74.0, 61.0),
    "erm on gray": (68.4, 66.1),
}


def scores(learner, train, test, seed, stage):
    """What one seed is scored on after a stage: 2 environments, a test, a sweep."""
    shift = (seed - 1) * 1.5
    for name, value in (("early", train - 1), ("late", train + 1)):
        yield ScoreRecord(
            learner, "sequential", seed, stage, name, "train", "accuracy", value + shift
        )
    yield ScoreRecord(
        learner, "sequential", seed, stage, "far", "test", "accuracy", test + shift
    )
    for n in range(11):
        value = train + (test - train) * n / 10 + shift
        yield ScoreRecord(
            learner,
            "sequential",
            seed,
            stage,
            str(n),
            "sweep",
            "accuracy",
            value,
            n / 10,
        )


@pytest.fixture(scope="session")
def records():
    """Thirteen learners, one of them the ceiling; 3 seeds, 2 stages."""
    rows = []
    memory = {"memory": {"examples": 100, "parameters": 0, "bytes": 78_400}}
    for learner, (train, test) in LEARNERS.items():
        for seed in range(3):
            for stage in range(2):
                rows += scores(learner, train, test, seed, stage)
                rows += [
                    TrainingCurveRecord(
                        learner, "sequential", seed, stage, step, "loss", 1 / (1 + step)
                    )
                    for step in range(0, 300, 20)
                ]
        kept = memory if learner in ("gem", "mer") else {}
        rows.append(
            RunRecord(
                learner,
                "sequential",
                (0, 1, 2),
                {"rate": 0.001, "hidden": [100, 100]},
                {"name": "colored", "source": "digits"},
                "defaults",
                kept,
                2.5,
            )
        )
    return rows


@pytest.fixture(scope="session")
def png():
    """A picture of four red dots."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    lines = zlib.compress((b"\0" + b"\xff\0\0" * 2) * 2)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
