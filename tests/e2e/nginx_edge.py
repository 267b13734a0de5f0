"""The nginx of ``deploy/nginx/seedance.conf`` before servers that count: real processes, loopback ports."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define

from tests.certificates import HOST, write_authority, write_certificate
from tests.faults.server_process import START_TIMEOUT_S, ServerProcess, free_port, numbers_process

__all__ = ["Edge", "nginx_edge"]

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "seedance.conf"
NODES = ("127.0.0.1:8081", "127.0.0.1:8082")
_MAIN = """
daemon off;
worker_processes 1;
error_log {directory}/error.log info;
pid {directory}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    log_format edge "$request_uri $status $upstream_addr";
    access_log {directory}/access.log edge;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/seedance.conf;
}}
"""


@define
class Edge:
    """nginx and its nodes.

    Attributes:
        port: Where nginx listens, with TLS.
        authority: File of the authority that its certificate is of.
        nodes: The servers behind it.
        directory: Where its logs are.
    """

    port: int
    authority: Path
    nodes: list[ServerProcess]
    directory: Path

    def went_to(self, uri: str) -> list[str]:
        """The nodes that requests for ``uri`` were sent to, one text a request: several where one failed."""
        lines = (line.split(" ", 2) for line in (self.directory / "access.log").read_text().splitlines())
        return [addresses for asked, _, addresses in lines if asked == uri]

    def turned_away(self, uri: str) -> bool:
        """Whether a request for ``uri`` was told that its node is away."""
        lines = (self.directory / "access.log").read_text().splitlines()
        return any(line.startswith((f"{uri} 502 ", f"{uri} 503 ", f"{uri} 504 ")) for line in lines)

    @property
    def url(self) -> str:
        """Where WebSocket clients go."""
        return f"wss://{HOST}:{self.port}/v1/chat"

    @property
    def origin(self) -> str:
        """Where HTTP clients go."""
        return f"https://{HOST}:{self.port}"


def _adapted(port: int, nodes: list[ServerProcess], directory: Path) -> str:
    """The shipped configuration with this machine's ports and files, and nothing else changed."""
    text = CONFIGURATION.read_text()
    certificate, key = write_certificate(directory)
    changes = {
        "listen 443 ssl http2;": f"listen {HOST}:{port} ssl http2;",
        "listen [::]:443 ssl http2;": "",
        "/etc/seedance/tls/cert.pem": str(certificate),
        "/etc/seedance/tls/key.pem": str(key),
        **{address: f"{HOST}:{node.port}" for address, node in zip(NODES, nodes, strict=True)},
    }
    for old, new in changes.items():
        assert old in text, f"{old} isn't in the shipped configuration any more"
        text = text.replace(old, new)
    return text


@contextmanager
def nginx_edge(directory: Path, *flags: str, step_ms: int) -> Iterator[Edge]:
    """Starts two servers and nginx; all are gone when the block is left."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if nginx is None:
        pytest.skip("there is no nginx: apt-get install nginx")
    nodes = []
    for name in ("a", "b"):
        (directory / name).mkdir()
        nodes.append(numbers_process(directory / name, *flags, step_ms=step_ms))
    edge = Edge(free_port(), write_authority(directory), nodes, directory)
    (directory / "seedance.conf").write_text(_adapted(edge.port, nodes, directory))
    main = directory / "nginx.conf"
    main.write_text(_MAIN.format(directory=directory))
    process: subprocess.Popen[bytes] | None = None
    try:
        for node in nodes:
            node.start()
        command = [nginx, "-p", str(directory), "-e", str(directory / "early.log"), "-c", str(main)]
        subprocess.run([*command, "-t"], check=True, capture_output=True)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (all(node.is_ready for node in nodes) and (directory / "nginx.pid").exists()):
            assert process.poll() is None, (directory / "early.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield edge
    finally:
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        for node in nodes:
            node.destroy()
