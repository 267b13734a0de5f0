"""The engines that ours is compared with, each behind `engine.peer.Peer`; one is ours, otherwise set."""

from engine.peer import Peer
from engine.peers.llamacpp import LlamaCpp
from engine.peers.ours import Ours
from engine.peers.transformers_serve import TransformersServe
from engine.peers.vllm_serve import VllmServe

__all__ = ["PEERS"]

PLAIN = Ours(
    flags=("--speculative-tokens", "0"),
    name="plain",
    title="seedance, no drafts",
    levels=frozenset({1, 8}),  # with more streams there are no drafts anyway
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in (PLAIN, VllmServe(), TransformersServe(), LlamaCpp())}
"""By name, in the order of the tables."""
