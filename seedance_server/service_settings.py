"""The part of the settings that is about the door: where the server listens, to whom, what it logs.

`config.py` puts the parts together, and checks all. It must not know where a value came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from seedance_server.proxies import Network, parse_network
from seedance_server.setting import setting_field

__all__ = ["ServiceSettings"]

_USUAL_PORTS = {"http": 80, "https": 443}


def _service(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="service", **more)


def _origin(text: str) -> str:
    """Reads an origin as browsers send it: a page's scheme and host, its port unless that is the usual one.

    Raises:
        ValueError: No browser sends this, so it would let nobody in.
    """
    try:
        parts = urlsplit(text)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = "" if parts.port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{parts.port}"
        is_sent = bool(host) and text == f"{parts.scheme}://{host}{port}"
    except ValueError:  # a port that is none
        is_sent = False
    if not is_sent and text != "null":  # of pages without an origin, such as files
        raise ValueError(f"must be an origin such as https://chat.example, without a path, not {text!r}")
    return text


@frozen(kw_only=True, slots=False)
class ServiceSettings:
    """Where it listens and whom it lets in; the texts beside the fields are what ``--help`` prints."""

    host: str = _service(
        "127.0.0.1", "--host", "ADDRESS", "address to listen on; beyond loopback a key is needed"
    )
    port: int = _service(8080, "--port", "PORT", "port to listen on; 0 picks a free one")
    api_key: str | None = _service(
        None,
        "--api-key",
        "KEY",
        "key that clients must send; better set by environment, flags are visible to others",
        secret=True,
    )
    keys_path: Path | None = _service(  # noqa: RUF009
        None,
        "--keys",
        "PATH",
        "file of tenants and their keys, see `seedance-server keys --help`; read again when it changes",
        parse=Path,
    )
    trusted_proxies: tuple[Network, ...] = _service(
        (),
        "--trust-proxy",
        "NETWORK",
        "address or network of a proxy that is believed on whom it speaks for (X-Forwarded-For); repeatable",
        parse=parse_network,
        repeatable=True,
    )
    ssl_certfile: Path | None = _service(  # noqa: RUF009
        None,
        "--ssl-certfile",
        "PATH",
        "certificate and those that vouch for it, PEM: TLS 1.3 from then on; read again on SIGHUP",
        parse=Path,
    )
    ssl_keyfile: Path | None = _service(  # noqa: RUF009
        None, "--ssl-keyfile", "PATH", "its private key (default: in the same file)", parse=Path
    )
    ssl_keyfile_password: str | None = _service(
        None,
        "--ssl-keyfile-password",
        "PASSWORD",
        "password of that key; better set by environment, flags are visible to others",
        secret=True,
    )
    allow_origins: tuple[str, ...] = _service(
        (),
        "--allow-origin",
        "ORIGIN",
        "web page origin that may connect, e.g. https://chat.example; repeatable",
        parse=_origin,
        repeatable=True,
    )
    playground: str = _service(
        "on",
        "--playground",
        "SWITCH",
        "the page at / for trying the model out; it shows nobody anything that needs a key",
        choices=("on", "off"),
    )
    shutdown_timeout_s: float = _service(
        30.0, "--shutdown-timeout", "SECONDS", "time from SIGTERM to the end; streams run on for most of it"
    )
    reconnect_to: str | None = _service(
        None,
        "--reconnect-to",
        "URL",
        "where clients are told to go when this server shuts down (default: back to where they were)",
    )
    log_level: str = _service(
        "info",
        "--log-level",
        "LEVEL",
        "least severe log line printed",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _service(
        "console", "--log-format", "FORMAT", "how log lines look", choices=("console", "json")
    )
