"""The webhooks over HTTP: a review in, a review out, and a status with a clear text where there is none.

Invariants: whatever a handler makes of a question, the process lives on; nobody waits for longer than the API server
does; who has been asked when we are told to stop is answered.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

import anyio
import msgspec
from aiohttp import web

from gracectl.admission.reviews import Answer, CannotTell, Handler, NotAReview, Question, read_review, written
from gracectl.admission.webhooks import WEBHOOKS, Webhook
from gracectl.kube.errors import ApiError
from gracectl.model.durations import parse_seconds
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry import server
from gracectl.telemetry.connections import Bodies, BodyRefused, Limits
from gracectl.telemetry.metrics import ADMISSION_LATENCY

logger = logging.getLogger(__name__)

LIMITS: Final = Limits(connections=256, largest_body=8 * 1024 * 1024)
"""API servers keep 25 idle connections each, and ask in bursts. A review bears an object as it is and as it would be,
each of up to 3 MiB as the API server takes them."""

VERDICTS: Final = ("allowed", "patched", "denied", "invalid", "unready", "failed")
"""What becomes of a question: the last three have no answer, as it was none, it came too early, or we failed."""

_WITHOUT: Final = {400: "invalid", 403: "invalid", 408: "invalid", 413: "invalid", 503: "unready"}


class ReceptionStatistics(msgspec.Struct, frozen=True):
    """By the short names of webhooks: how many questions have had which of VERDICTS, and how long answers took."""

    verdicts: Mapping[tuple[str, str], int]
    seconds: Mapping[str, Distribution]


class Reception:
    """Takes questions to their handlers. `patience`: seconds for an answer where the API server names none; `clients`:
    names of which a client's certificate must have one, none: whatever TLS has let in may ask."""

    def __init__(
        self, handlers: Mapping[Webhook, Handler], clock: Clock, patience: float, clients: frozenset[str] = frozenset()
    ) -> None:
        self.answers: Mapping[str, server.Answer] = {
            webhook.path: self._answering(webhook, handler) for webhook, handler in handlers.items()
        }
        self.is_leaving = False
        """Whether those who ask are to ask somebody else next time."""
        self._clock = clock
        self._patience = patience
        self._clients = clients
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._seconds = {webhook.short: Histogram(ADMISSION_LATENCY.buckets) for webhook in handlers}

    def statistics(self) -> ReceptionStatistics:
        """What has been asked so far."""
        return ReceptionStatistics(
            dict(self._verdicts), {short: seen.statistics() for short, seen in self._seconds.items()}
        )

    def _answering(self, webhook: Webhook, handler: Handler) -> server.Answer:
        async def answer(request: web.BaseRequest, bodies: Bodies) -> web.Response:
            if self._clients and self._clients.isdisjoint(shown := _names_of(request)):
                text = f"the client's certificate is for {', '.join(sorted(shown)) or 'no name'}, which may not ask"
                response = self._closed(webhook, 403, text)
                response.force_close()
                return response
            try:
                async with bodies.read(request) as body:
                    began = self._clock.monotonic()
                    response = await self._answered(webhook, handler, body, self._patience_of(request))
            except BodyRefused as error:
                response = self._closed(webhook, error.status, f"this is no review: {error}")
                response.force_close()
                return response
            self._seconds[webhook.short].observe(self._clock.monotonic() - began)
            if self.is_leaving:
                response.force_close()
            return response

        return answer

    async def _answered(self, webhook: Webhook, handler: Handler, body: bytes, seconds: float) -> web.Response:
        try:
            question = read_review(body)
            with anyio.fail_after(seconds):
                answer = await handler(question)
        except NotAReview as error:
            return self._closed(webhook, 400, str(error))
        except CannotTell as error:
            return self._closed(webhook, error.status, str(error))
        except TimeoutError:
            return self._closed(webhook, 500, f"no answer was found in {seconds:g} s: the cluster answers too slowly")
        except ApiError as error:
            return self._closed(webhook, 500, f"the cluster cannot be asked: {error}")
        except Exception:  # a fault of ours; the failurePolicy decides, and other questions have answers
            logger.exception("webhook %s has failed", webhook.name, extra={"webhook": webhook.name})
            return self._closed(webhook, 500, "gracectl has failed at this; its log says why")
        self._verdicts[webhook.short, answer.verdict] += 1
        _tell(webhook, question, answer)
        return web.Response(body=written(question.uid, answer), content_type="application/json")

    def _closed(self, webhook: Webhook, status: int, text: str) -> web.Response:
        """No answer, and why."""
        self._verdicts[webhook.short, _WITHOUT.get(status, "failed")] += 1
        logger.warning("webhook %s has no answer: %s", webhook.name, text, extra={"webhook": webhook.name})
        return web.Response(status=status, text=f"{text}\n")

    def _patience_of(self, request: web.BaseRequest) -> float:
        """An API server says in its query how long it waits: `timeout=10s`."""
        try:
            asked = parse_seconds(request.query.get("timeout", ""))
        except ValueError:
            return self._patience
        return min(asked, self._patience) if asked > 0 else self._patience


def _names_of(request: web.BaseRequest) -> frozenset[str]:
    """The common names and DNS names of the certificate that a client has shown."""
    certificate = request.get_extra_info("peercert") or {}
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in certificate.get("subjectAltName", ()) if key == "DNS"})


def no_questions() -> ReceptionStatistics:
    """What somebody has been asked who has never been asked."""
    nothing = Histogram(ADMISSION_LATENCY.buckets).statistics()
    return ReceptionStatistics({}, {webhook.short: nothing for webhook in WEBHOOKS})


def _tell(webhook: Webhook, question: Question, answer: Answer) -> None:
    """A line of the log: people look for denials."""
    keys = {"webhook": webhook.name, "object": question.name, "user": question.username}
    if answer.denial is not None:
        dry = " (a dry run)" if question.is_dry_run else ""
        text = "%s of %s %s by %s is denied%s: %s"
        place = question.resource.resource
        message = answer.denial.message
        logger.info(text, question.operation, place, question.name, question.username, dry, message, extra=keys)
    else:
        logger.debug("%s of %s is %s", question.operation, question.name, answer.verdict, extra=keys)
