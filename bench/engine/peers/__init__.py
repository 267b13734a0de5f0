"""The engines that ours is compared with, each behind `engine.peer.Peer`."""

from engine.peer import Peer
from engine.peers.llamacpp import LlamaCpp
from engine.peers.transformers_serve import TransformersServe
from engine.peers.vllm_serve import VllmServe

__all__ = ["PEERS"]

PEERS: dict[str, Peer] = {peer.name: peer for peer in (VllmServe(), TransformersServe(), LlamaCpp())}
"""By name, in the order of the tables."""
