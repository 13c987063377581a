"""What Prometheus reads of a replica: Ray's agent on its node exports these, with `ray_` before their names."""

from __future__ import annotations

from typing import Final

from ray.util.metrics import Counter, Gauge, Histogram

from rl_serve.window import Answered

_SECONDS: Final = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250]
_TOKEN_SECONDS: Final = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]


class Metrics:
    """Those of one replica of `service`."""

    def __init__(self, service: str) -> None:
        self._service = {"service": service}
        tags = ("service", "version")
        self._requests = Counter(
            "rltrain_serve_requests_total", "Requests that have ended.", tag_keys=(*tags, "code")
        )
        self._tokens = Counter(
            "rltrain_serve_tokens_total", "Tokens of prompts and of answers.", tag_keys=(*tags, "kind")
        )
        self._prefills = Counter(
            "rltrain_serve_prefills_total",
            "Prompts that another copy has computed, or why it has not.",
            tag_keys=("service", "outcome"),
        )
        self._queue = Gauge("rltrain_serve_queue", "Answers that wait for a place.", tag_keys=("service",))
        self._running = Gauge("rltrain_serve_running", "Answers that are written.", tag_keys=("service",))
        self._ttft = Histogram(
            "rltrain_serve_ttft_seconds",
            "Until the first piece of an answer.",
            boundaries=_SECONDS,
            tag_keys=tags,
        )
        self._tpot = Histogram(
            "rltrain_serve_token_seconds",
            "For each further token of an answer.",
            boundaries=_TOKEN_SECONDS,
            tag_keys=tags,
        )
        self._latency = Histogram(
            "rltrain_serve_latency_seconds", "Until the end of an answer.", boundaries=_SECONDS, tag_keys=tags
        )

    def note(self, one: Answered) -> None:
        """A request has ended."""
        tags = self._service | {"version": one.version}
        self._requests.inc(1, tags | {"code": str(one.code)})
        counts = (("prompt", one.prompt_tokens), ("completion", one.tokens), ("prefilled", one.prefilled))
        for kind, count in counts:
            if count:
                self._tokens.inc(count, tags | {"kind": kind})
        if one.code >= 400:
            return
        self._latency.observe(one.latency, tags)
        if one.ttft is not None:
            self._ttft.observe(one.ttft, tags)
        if one.tpot is not None:
            self._tpot.observe(one.tpot, tags)

    def prefill(self, outcome: str) -> None:
        """What became of a prompt that another copy might compute; see `rl_serve.prefill.Prefill`."""
        self._prefills.inc(1, self._service | {"outcome": outcome})

    def places(self, running: int, waiting: int) -> None:
        """How many answers are written, and wait, now."""
        self._running.set(running, self._service)
        self._queue.set(waiting, self._service)
