"""The Seedance server: batched generation behind one guarded WebSocket port."""

__all__ = ["__version__"]

__version__ = "0.1.0"
