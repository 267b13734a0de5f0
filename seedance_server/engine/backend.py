"""The seam between the engine and whatever multiplies its matrices.

`TorchBackend` runs everywhere and is the twin that any other backend is tested against. A backend is chosen
once, when the model is loaded, and every engine over that model asks it for its cache (and with it for the
attention over it) and for the sampler; the model's own modules it may
swap. The invariant: which backend runs changes rounding and speed, never what is computed.
"""

from typing import Any, Protocol, Unpack

from seedance_server.engine.kv_cache import CacheOptions, KvCache, KvGeometry
from seedance_server.engine.model_probe import Probed
from seedance_server.engine.own_memory import own_weights
from seedance_server.engine.progress import Progress, silent
from seedance_server.engine.sampler import Sampler
from seedance_server.engine.streams import Streams

__all__ = ["Backend", "TorchBackend"]


class Backend(Protocol):
    """How a loaded model is computed. All calls come from the engine's thread.

    Attributes:
        name: One word for logs and for the model's fingerprint: results may round otherwise.
        least_rows: Fewest rows that one of its products may be given and still round each row as it would
            among many; the runner pads to it.
        graph_obstacle: Why its steps can't be recorded (see `decode_graphs.py`), in a few words; None if they
            can, as far as the backend is concerned.
    """

    name: str
    least_rows: int
    graph_obstacle: str | None

    def prepare(self, model: Any) -> None:
        """Begin, on another thread, what `adopt` will need and needn't wait for the probe."""

    def adopt(self, model: Any, probed: Probed, progress: Progress = silent) -> None:
        """Swap those modules of the model that this backend computes itself; called once.

        Afterwards no weight is a view of the checkpoint's mapping.

        Args:
            model: Its stock modules compute what the probe saw.
            probed: What that was.
            progress: Told of each stage.
        """

    def open_cache(self, geometry: KvGeometry, **options: Unpack[CacheOptions]) -> KvCache:
        """A cache whose steps attend with this backend's attention; see `KvCache`."""

    def open_sampler(self, vocab_size: int, streams: Streams) -> Sampler:
        """What chooses tokens, above all from the logits that the model returned last."""


class TorchBackend:
    """Torch alone, on any device: the stock modules, scaled dot products over gathered blocks."""

    name = "torch"
    least_rows = 2  # for one row libraries switch to a matrix-vector kernel, which rounds otherwise
    graph_obstacle: str | None = None

    def prepare(self, model: Any) -> None:
        """Nothing to prepare."""

    def adopt(self, model: Any, probed: Probed, progress: Progress = silent) -> None:  # noqa: ARG002
        """Nothing to swap; but weights that the page cache may drop would be read a small page at a time."""
        progress("taking its weights into memory")
        own_weights(model)

    def open_cache(self, geometry: KvGeometry, **options: Unpack[CacheOptions]) -> KvCache:
        """The cache as it is."""
        return KvCache(geometry, **options)

    def open_sampler(self, vocab_size: int, streams: Streams) -> Sampler:
        """The sampler as it is."""
        return Sampler(vocab_size, streams=streams)
