"""A script that trains another package in that package's own interpreter.

It must not import cirm, which that interpreter does not have. Its arguments are a
method and a file of arrays; it prints one line of JSON with the processor seconds of
training, the version, and the accuracy or the selected features.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any


def main() -> None:
    """Train the method of the first argument on the file of the second."""
    import numpy as np

    warnings.filterwarnings("ignore")
    method, path = sys.argv[1:]
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    result = (
        run_causal_prediction(arrays)
        if method == "icp"
        else run_continual_learning(method, arrays)
    )
    print("\n" + json.dumps(result))


def run_causal_prediction(arrays: dict[str, Any]) -> dict[str, Any]:
    """Run invariant causal prediction of the last column from the others."""
    from importlib.metadata import version

    import causalicp

    places = [arrays[name] for name in sorted(arrays) if name.startswith("place")]
    began = time.process_time()
    found = causalicp.fit(places, places[0].shape[1] - 1, alpha=0.05, verbose=False)
    seconds = time.process_time() - began
    features = sorted(found.estimate) if found.estimate else []
    return {
        "seconds": seconds,
        "version": f"causalicp {version('causalicp')}",
        "features": [int(feature) for feature in features],
    }


def run_continual_learning(method: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Train naively, or by EWC or GEM, with Avalanche on two environments in turn."""
    from importlib.metadata import version

    import torch
    from avalanche.benchmarks import benchmark_from_datasets  # type: ignore[import-not-found]
    from avalanche.benchmarks.utils import as_classification_dataset  # type: ignore[import-not-found]
    from avalanche.training.plugins import EvaluationPlugin  # type: ignore[import-not-found]
    from avalanche.training.supervised import EWC, GEM, Naive  # type: ignore[import-not-found]
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(int(arrays["seed"]))
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    places = []
    for inputs, labels in zip(x, y, strict=True):
        made = TensorDataset(inputs, labels)
        made.targets = labels.tolist()  # type: ignore[attr-defined]
        places.append(as_classification_dataset(made))
    stream = benchmark_from_datasets(train=places, test=places).train_stream
    model = nn.Sequential(
        nn.Linear(x.shape[-1], 100), nn.ELU(), nn.Linear(100, 100), nn.ELU(),
        nn.Linear(100, 2),
    )  # fmt: skip
    strategy = {"erm": Naive, "ewc": EWC, "gem": GEM}[method]
    own: dict[str, Any] = {
        "ewc": {"ewc_lambda": 0.1},
        "gem": {"patterns_per_exp": 100, "memory_strength": 0.0},
    }.get(method, {})
    learner = strategy(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=int(arrays["batch"]),
        train_epochs=int(arrays["epochs"]),
        evaluator=EvaluationPlugin(),
        **own,
    )
    began = time.process_time()
    for experience in stream:
        learner.train(experience)
    seconds = time.process_time() - began
    with torch.no_grad():
        answers = model(torch.from_numpy(arrays["test_x"])).argmax(-1).numpy()
    accuracy = 100 * float((answers == arrays["test_y"]).mean())
    release = f"avalanche-lib {version('avalanche-lib')}"
    return {"seconds": seconds, "version": release, "accuracy": accuracy}


if __name__ == "__main__":
    main()
