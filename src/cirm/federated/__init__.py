"""Environments at their own sites: ADMM over Flower, with no data leaving a site.

Flower loads `cirm.federated.client:app` at each site and `cirm.federated.server:app` at
the server. The rest is plain: a study says what all agree on, a site takes its steps,
the server meets with the sites, and a ledger counts what leaves them.
"""

from __future__ import annotations

import os

# Flower reads it when it is loaded; its own commands load it before this.
CHOSEN = "FLWR_TELEMETRY_ENABLED" in os.environ
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
