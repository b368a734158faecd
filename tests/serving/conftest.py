"""A small model, and a server of it."""

import pytest

from cirm import fit, save
from cirm.serving.app import RequestSizeLimits
from tests.serving.server import ROW, make_table, serve

QUICK = {"epochs": 3, "hidden": (4,)}


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model.cirm"
    model = fit(
        make_table(80), "outcome", learner="vcl", settings=QUICK, ids=["patient"]
    )
    save(model, path)
    return path


@pytest.fixture(scope="session")
def client(model_file):
    with serve(model_file, limits=RequestSizeLimits(rows=50, bytes=20_000)) as client:
        yield client


@pytest.fixture
def row():
    return dict(ROW)
