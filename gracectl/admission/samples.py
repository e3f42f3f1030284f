"""What the metrics of this room say: who was asked what, what came of it, and how long the certificate is good."""

from __future__ import annotations

from collections.abc import Iterator

from gracectl.admission.server import VERDICTS, ReceptionStatistics
from gracectl.admission.webhooks import WEBHOOKS
from gracectl.runtime.certificates import CertificateInfo
from gracectl.telemetry.metrics import ADMISSION_CERTIFICATE, ADMISSION_LATENCY, ADMISSION_REQUESTS, Sample


def admission_samples(reception: ReceptionStatistics, certificate: CertificateInfo | None) -> Iterator[Sample]:
    """Of the server and of its certificate."""
    for short in (webhook.short for webhook in WEBHOOKS):
        for verdict in VERDICTS:
            yield Sample(ADMISSION_REQUESTS, (short, verdict), reception.verdicts.get((short, verdict), 0))
        yield Sample(ADMISSION_LATENCY, (short,), reception.seconds[short])
    yield Sample(ADMISSION_CERTIFICATE, (), certificate.ends if certificate else 0)
