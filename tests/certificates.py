"""Certificates for tests: an authority that nobody else trusts, and servers' certificates of it in files."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

__all__ = ["AUTHORITY", "client_context", "write_authority", "write_certificate"]

AUTHORITY = trustme.CA()
HOST = "127.0.0.1"


def write_certificate(directory: Path, authority: trustme.CA = AUTHORITY) -> tuple[Path, Path]:
    """A certificate of the loopback and its key, as ``cert.pem`` and ``key.pem``."""
    leaf = authority.issue_cert(HOST, "localhost")
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(paths[1])
    return paths


def write_authority(directory: Path, authority: trustme.CA = AUTHORITY) -> Path:
    """The authority's own certificate, as ``ca.pem``."""
    path = directory / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def client_context(*protocols: str, authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    """What a client needs to trust it, offering these application protocols."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context
