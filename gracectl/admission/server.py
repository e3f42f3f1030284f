"""Webhooks over HTTP: a review in, a review out, and an HTTP status with a clear text if there is no decision.

Invariants: a failing handler never ends the process; no request takes longer than the API server waits; requests under
way when the process is stopped are completed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import anyio
import msgspec
from aiohttp import web

from gracectl.admission import reviews
from gracectl.admission.webhooks import WEBHOOKS, Webhook
from gracectl.kube.errors import ApiError
from gracectl.model.durations import parse_seconds
from gracectl.runtime.certificates import CertificateInfo
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry import metrics, server
from gracectl.telemetry.connections import BodyReader, BodyRefused, Limits
from gracectl.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

LIMITS: Final = Limits(connections=256, largest_body=8 * 1024 * 1024)
"""API servers keep 25 idle connections each, and send bursts. A review has an object as it is and as it would be, each
of up to 3 MiB as the API server accepts them."""

_VERDICT_BY_STATUS: Final = {400: "invalid", 403: "invalid", 408: "invalid", 413: "invalid", 503: "unready"}


class WebhookServer:
    """HTTP handlers of the webhooks. `timeout`: seconds for a response where the API server names none; `clients`:
    names of which a client's certificate must have one, none: any that TLS accepts; `is_ours`: whether API servers know
    a secret segment in front of a path ("": none)."""

    def __init__(
        self,
        handlers: Mapping[Webhook, reviews.Handler],
        clock: Clock,
        timeout: float,
        clients: frozenset[str] = frozenset(),
        is_ours: Callable[[str], bool] = lambda segment: not segment,
    ) -> None:
        self.http_handlers: Mapping[str, server.HttpHandler] = {
            webhook.path: self._http_handler(webhook, handler) for webhook, handler in handlers.items()
        }
        self._is_ours = is_ours
        self._strangers = 0
        self.is_stopping = False
        """Whether to close connections, so that API servers turn to another replica."""
        self._clock = clock
        self._timeout = timeout
        self._clients = clients
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._seconds = {webhook.short: Histogram(metrics.ADMISSION_LATENCY.buckets) for webhook in handlers}

    def find(self, path: str) -> server.HttpHandler | None:
        """Handler of a path that API servers know; another path is counted, and its body never read. Only they can read
        the secret segment, so a forged review has no effect."""
        plain = path if path in self.http_handlers else "/" + path[1:].partition("/")[2]
        handler = self.http_handlers.get(plain)
        if handler is None or not self._is_ours(path.removesuffix(plain).removeprefix("/")):
            self._strangers += 1
            return None
        return handler

    def statistics(self) -> WebhookStatistics:
        """Requests so far."""
        seconds = {short: histogram.statistics() for short, histogram in self._seconds.items()}
        return WebhookStatistics(dict(self._verdicts), seconds, self._strangers)

    def _http_handler(self, webhook: Webhook, handler: reviews.Handler) -> server.HttpHandler:
        async def handle(request: web.BaseRequest, bodies: BodyReader) -> web.Response:
            if self._clients and self._clients.isdisjoint(names := _names_of(request)):
                text = f"client certificate for {', '.join(sorted(names)) or 'no name'}: not allowed"
                response = self._failure(webhook, 403, text)
                response.force_close()
                return response
            try:
                async with bodies.read(request) as body:
                    began = self._clock.monotonic()
                    response = await self._respond(webhook, handler, body, self._timeout_of(request))
            except BodyRefused as error:
                response = self._failure(webhook, error.status, f"not a review: {error}")
                response.force_close()
                return response
            self._seconds[webhook.short].observe(self._clock.monotonic() - began)
            if self.is_stopping:
                response.force_close()
            return response

        return handle

    async def _respond(self, webhook: Webhook, handler: reviews.Handler, body: bytes, seconds: float) -> web.Response:
        try:
            review_request = reviews.decode_review(body)
            with anyio.fail_after(seconds):
                response = await handler(review_request)
        except reviews.InvalidReview as error:
            return self._failure(webhook, 400, str(error))
        except reviews.Undecided as error:
            return self._failure(webhook, error.status, str(error))
        except TimeoutError:
            return self._failure(webhook, 500, f"no decision within {seconds:g} s: the API server responds too slowly")
        except ApiError as error:
            return self._failure(webhook, 500, f"API server: {error}")
        except Exception:  # a bug; the failurePolicy decides, and other requests are served
            logger.exception("webhook %s: unexpected failure", webhook.name, extra={"webhook": webhook.name})
            return self._failure(webhook, 500, "unexpected failure of gracectl; see its log")
        self._verdicts[webhook.short, response.verdict] += 1
        _log(webhook, review_request, response)
        return web.Response(body=reviews.encode_review(review_request.uid, response), content_type="application/json")

    def _failure(self, webhook: Webhook, status: int, text: str) -> web.Response:
        """HTTP response without a decision."""
        self._verdicts[webhook.short, _VERDICT_BY_STATUS.get(status, "failed")] += 1
        logger.warning("webhook %s: no decision: %s", webhook.name, text, extra={"webhook": webhook.name})
        return web.Response(status=status, text=f"{text}\n")

    def _timeout_of(self, request: web.BaseRequest) -> float:
        """API servers send their timeout in the query: `timeout=10s`."""
        try:
            requested = parse_seconds(request.query.get("timeout", ""))
        except ValueError:
            return self._timeout
        return min(requested, self._timeout) if requested > 0 else self._timeout


def _names_of(request: web.BaseRequest) -> frozenset[str]:
    """Common names and DNS names of a client's certificate."""
    certificate = request.get_extra_info("peercert") or {}
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in certificate.get("subjectAltName", ()) if key == "DNS"})


def _log(webhook: Webhook, request: reviews.AdmissionRequest, response: reviews.AdmissionResponse) -> None:
    """Log a request; denials at level info."""
    keys = {"webhook": webhook.name, "object": request.name, "user": request.username}
    if response.denial is not None:
        dry = " (dry run)" if request.is_dry_run else ""
        text = "%s of %s %s by %s: denied%s: %s"
        place = request.resource.resource
        message = response.denial.message
        logger.info(
            text,
            request.operation,
            place,
            request.name,
            request.username,
            dry,
            message,
            extra=keys,
        )
    else:
        logger.debug("%s of %s: %s", request.operation, request.name, response.verdict, extra=keys)


VERDICTS: Final = ("allowed", "patched", "denied", "invalid", "unready", "failed")
"""Outcomes of requests: the last three have no response, because the request was invalid, came too early, or failed."""


class WebhookStatistics(msgspec.Struct, frozen=True):
    """By the short names of webhooks: requests per outcome of VERDICTS, and durations. `strangers`: requests on paths
    that no API server is sent to."""

    verdicts: Mapping[tuple[str, str], int]
    seconds: Mapping[str, Distribution]
    strangers: int = 0


def empty_statistics() -> WebhookStatistics:
    """Empty statistics."""
    nothing = Histogram(metrics.ADMISSION_LATENCY.buckets).statistics()
    return WebhookStatistics({}, {webhook.short: nothing for webhook in WEBHOOKS})


def empty_samples() -> Iterator[Sample]:
    """Samples of a process without admission."""
    return admission_samples(empty_statistics(), None, is_registered=False)


def admission_samples(
    webhooks: WebhookStatistics, certificate: CertificateInfo | None, *, is_registered: bool
) -> Iterator[Sample]:
    """Samples of the webhooks, of the certificate, and of the configurations."""
    for short in (webhook.short for webhook in WEBHOOKS):
        for verdict in VERDICTS:
            yield Sample(metrics.ADMISSION_REQUESTS, (short, verdict), webhooks.verdicts.get((short, verdict), 0))
        yield Sample(metrics.ADMISSION_LATENCY, (short,), webhooks.seconds[short])
    yield Sample(metrics.ADMISSION_STRANGERS, (), webhooks.strangers)
    yield Sample(metrics.ADMISSION_REGISTERED, (), float(is_registered))
    yield Sample(metrics.ADMISSION_CERTIFICATE, (), certificate.not_after if certificate else 0)
