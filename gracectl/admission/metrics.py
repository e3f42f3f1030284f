"""Metrics of admission."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gracectl.admission.webhooks import WEBHOOKS
from gracectl.runtime.certificates import CertificateInfo
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry.metrics import ADMISSION_CERTIFICATE, ADMISSION_LATENCY, ADMISSION_REQUESTS, Sample

VERDICTS: Final = ("allowed", "patched", "denied", "invalid", "unready", "failed")
"""Outcomes of requests: the last three have no response, because the request was invalid, came too early, or failed."""


class WebhookStatistics(msgspec.Struct, frozen=True):
    """By the short names of webhooks: requests per outcome of VERDICTS, and durations."""

    verdicts: Mapping[tuple[str, str], int]
    seconds: Mapping[str, Distribution]


def empty_statistics() -> WebhookStatistics:
    """Empty statistics."""
    nothing = Histogram(ADMISSION_LATENCY.buckets).statistics()
    return WebhookStatistics({}, {webhook.short: nothing for webhook in WEBHOOKS})


def admission_samples(webhooks: WebhookStatistics, certificate: CertificateInfo | None) -> Iterator[Sample]:
    """Samples of the webhooks and of the certificate."""
    for short in (webhook.short for webhook in WEBHOOKS):
        for verdict in VERDICTS:
            yield Sample(ADMISSION_REQUESTS, (short, verdict), webhooks.verdicts.get((short, verdict), 0))
        yield Sample(ADMISSION_LATENCY, (short,), webhooks.seconds[short])
    yield Sample(ADMISSION_CERTIFICATE, (), certificate.ends if certificate else 0)
