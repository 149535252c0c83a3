"""What a user would pick instead of us, measured on the same servers in the same run."""

from benchmarks.peers.environment import PeersUnavailable, peers_python
from benchmarks.peers.running import PEERS, PeerFailed, PeerRun, drain, latency

__all__ = [
    "PEERS",
    "PeerFailed",
    "PeerRun",
    "PeersUnavailable",
    "drain",
    "latency",
    "peers_python",
]
