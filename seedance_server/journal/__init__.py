"""The journal: sessions, requests and frames that outlive the process; see `interface`."""

__all__: list[str] = []
