"""A collector of OpenTelemetry's: takes OTLP over HTTP, decodes it, and keeps the spans."""

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What came; ``status`` is what senders are told."""

    def __init__(self):
        self.spans, self.resources, self.status, self.requests = [], [], 200, 0
        self.news = threading.Event()
        self.url = ""

    def take(self, body):
        self.requests += 1
        if self.status == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(_values(resource.resource.attributes))
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        self.news.set()


@contextmanager
def receiving():
    """Runs one on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            receiver.take(body)
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def values(span):
    """A span's attributes."""
    return _values(span.attributes)


def _values(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
