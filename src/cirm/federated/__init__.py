"""Train on environments that stay at their own sites: ADMM over Flower.

Flower loads `cirm.federated.client:app` at each site and `cirm.federated.server:app` at
the server. `FederatedStudySettings` holds what all agree on, a `FederatedSite` trains
on its own data, the `FederatedStudyCoordinator` averages what the sites send, and a
`MessageExchangeLog` counts the bytes.
"""

from __future__ import annotations

import os

# Flower reads this variable when it is imported; its own commands do so before us.
USER_HAS_SET_TELEMETRY = "FLWR_TELEMETRY_ENABLED" in os.environ
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
