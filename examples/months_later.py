"""Continuing after months: a model's file is all that is needed, the data are gone.

python examples/months_later.py
"""

import tempfile
from pathlib import Path

from clinics import clinic

from cirm import fit, load, save, update
from cirm.model.explain import describe_model

with tempfile.TemporaryDirectory() as name:
    path = Path(name) / "triage.cirm"

    # In spring, at clinic a; its data never leave it.
    save(fit(clinic("clinic-a", rows=600), "outcome", ids=["patient"]), path)

    # In autumn, on another machine, at clinic b.
    model = update(load(path), clinic("clinic-b", rows=600))
    save(model, path)

    told = describe_model(load(path))
    print(f"learned {len(told['history'])} times by {told['learner']}")
    print(f"kept of past data: {told['raw_examples']} rows, {told['bytes']:,} bytes")
    print(f"most important column: {next(iter(told['importance']))}")
    print(f"less important now: {', '.join(told['importance_drops']) or 'none'}")
