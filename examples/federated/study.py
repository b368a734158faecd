"""What Flower loads: the apps of cirm.federated."""

from cirm.federated.client import app as client
from cirm.federated.server import app as server

__all__ = ["client", "server"]
