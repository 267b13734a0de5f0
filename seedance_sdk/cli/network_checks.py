"""From a name to an encrypted connection: the examinations that need no Seedance at the other end.

Each tells what it found; the first that fails raises `Hopeless`, since what comes after it could only fail in
a more puzzling way.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime

import trio

from seedance_sdk.cli.finding import Finding, Verdict
from seedance_sdk.cli.pace import format_ms
from seedance_sdk.endpoint import Endpoint

__all__ = ["Hopeless", "Tell", "check_connection", "check_name", "check_ready", "is_loopback"]

Tell = Callable[[Finding], None]

STEP_S = 10.0
"""For each step: ten round trips around the world, with time to spare."""
_ALPN = "http/1.1"
_SOON_DAYS = 14


class Hopeless(Exception):  # noqa: N818 - an end, not a fault
    """What was just told ends the examination."""


def is_loopback(host: str) -> bool:
    """Whether it is this machine, by its usual names."""
    return host in {"localhost", "::1"} or host.startswith("127.")


async def check_name(endpoint: Endpoint, tell: Tell) -> None:
    """Looks the host up."""
    began_s = time.perf_counter()
    try:
        with trio.fail_after(STEP_S):
            found = await trio.socket.getaddrinfo(endpoint.host, endpoint.port, type=trio.socket.SOCK_STREAM)
    except (OSError, trio.TooSlowError) as error:
        words = f"{endpoint.host}: {error or 'no answer'}"
        tell(Finding(Verdict.FAIL, "DNS", words, "check the name in the URL, and this machine's DNS"))
        raise Hopeless from error
    addresses = dict.fromkeys(str(address[0]) for *_, address in found)
    took = format_ms((time.perf_counter() - began_s) * 1e3)
    tell(Finding(Verdict.OK, "DNS", f"{endpoint.host} is {', '.join(addresses)} ({took})"))


async def check_connection(endpoint: Endpoint, tell: Tell) -> None:
    """Connects, and looks at the encryption."""
    began_s = time.perf_counter()
    try:
        with trio.fail_after(STEP_S):
            tcp = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    except trio.TooSlowError as error:
        advice = "a firewall drops it, or the address is wrong"
        tell(Finding(Verdict.FAIL, "TCP", f"port {endpoint.port}: no answer in {STEP_S:g} s", advice))
        raise Hopeless from error
    except OSError as error:
        advice = "nothing listens there: is the server running, and is it this port?"
        tell(Finding(Verdict.FAIL, "TCP", f"port {endpoint.port}: {_reason(error)}", advice))
        raise Hopeless from error
    async with tcp:
        took = format_ms((time.perf_counter() - began_s) * 1e3)
        tell(Finding(Verdict.OK, "TCP", f"port {endpoint.port} answers ({took})"))
        if endpoint.secure:
            await _check_tls(tcp, endpoint, tell)
        elif is_loopback(endpoint.host):
            tell(Finding(Verdict.OK, "TLS", "none, on this machine"))
        else:
            advice = "anybody on the way reads the key and the text: use wss://"
            tell(Finding(Verdict.WARN, "TLS", "none", advice))


async def _check_tls(tcp: trio.SocketStream, endpoint: Endpoint, tell: Tell) -> None:
    context = ssl.create_default_context()
    context.set_alpn_protocols([_ALPN])
    tls = trio.SSLStream(tcp, context, server_hostname=endpoint.host, https_compatible=True)
    began_s = time.perf_counter()
    try:
        with trio.fail_after(STEP_S):
            await tls.do_handshake()
    except (trio.BrokenResourceError, trio.TooSlowError, ssl.SSLError, ssl.CertificateError) as error:
        cause = error.__cause__ or error
        distrusted = isinstance(cause, ssl.SSLCertVerificationError)
        words = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else _reason(cause)
        advice = (
            "is it the right host? an authority of your own is named by SSL_CERT_FILE"
            if distrusted
            else "does the port speak TLS? if it doesn't, the URL begins with ws://"
        )
        tell(Finding(Verdict.FAIL, "TLS", words, advice))
        raise Hopeless from error
    took = format_ms((time.perf_counter() - began_s) * 1e3)
    version, certificate = tls.version(), tls.getpeercert()
    alpn = tls.selected_alpn_protocol()
    old = version != "TLSv1.3"
    tell(
        Finding(
            Verdict.WARN if old else Verdict.OK,
            "TLS",
            f"{version} ({took})",
            "our own servers speak 1.3 only: something in between ends TLS here" if old else "",
        )
    )
    tell(
        Finding(Verdict.OK, "ALPN", alpn)
        if alpn == _ALPN
        else Finding(
            Verdict.WARN, "ALPN", alpn or "not answered", f"edges route by it: have the proxy offer {_ALPN}"
        )
    )
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - datetime.now(UTC).timestamp()) / 86_400
    words = f"good for {days:.0f} more days"
    late = days < _SOON_DAYS
    tell(Finding(Verdict.WARN if late else Verdict.OK, "certificate", words, "renew it" if late else ""))


async def check_ready(endpoint: Endpoint, tell: Tell) -> None:
    """Asks whether the server takes work; whoever doesn't know the question is no server of ours."""

    def ask() -> tuple[int, str]:
        make = http.client.HTTPSConnection if endpoint.secure else http.client.HTTPConnection
        connection = make(endpoint.host, endpoint.port, timeout=STEP_S)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            return answer.status, answer.read(200).decode("utf-8", "replace").strip()
        finally:
            connection.close()

    try:
        status, body = await trio.to_thread.run_sync(ask)
    except (OSError, http.client.HTTPException) as error:
        tell(Finding(Verdict.FAIL, "HTTP", _reason(error), "is that a Seedance server?"))
        raise Hopeless from error
    if status == 200:
        tell(Finding(Verdict.OK, "readiness", "the server takes work"))
    elif status == 503:
        advice = "wait for it, or look at the server's log"
        tell(Finding(Verdict.WARN, "readiness", f"the server takes none just now: {body}", advice))
    else:
        advice = "a proxy may keep /readyz to itself; else it is no Seedance server"
        tell(Finding(Verdict.WARN, "readiness", f"/readyz answers {status}", advice))


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
