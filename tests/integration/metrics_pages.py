"""Pages that Prometheus scrapes, made anew each time they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from exported_metrics import count, filled
from kueue_metrics import KUEUE
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Gauge, generate_latest
from serving_metrics import Replica


@contextmanager
def served(pages: Mapping[str, Callable[[], str]]) -> Iterator[str]:
    """Serve pages by their paths; gives the address, as host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[self.path]().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: Prometheus asks every second."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def of_operator() -> Callable[[], str]:
    """The operator's page, with a sample of every family; what counts rises each time."""
    metrics = filled()

    def page() -> str:
        count(metrics)
        return generate_latest(metrics.registry).decode()

    return page


def of_replica() -> Callable[[], str]:
    """The page of a policy service's replica."""
    replica = Replica()

    def page() -> str:
        replica.count()
        return generate_latest(replica.registry).decode()

    return page


def of_kueue() -> Callable[[], str]:
    """What is asked of Kueue's page."""
    registry = CollectorRegistry()
    for name, labels in KUEUE.items():
        Gauge(name, name, sorted(labels), registry=registry).labels(**{label: label for label in labels}).set(
            1
        )
    return lambda: generate_latest(registry).decode()
