"""A certificate that somebody else keeps in files, as cert-manager does in a mounted Secret.

The files are read again and again, and what is new in them is offered. Invariant: what cannot be read, or does not
belong together, changes nothing, and is told once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from gracectl.admission.identity import Identity, Material
from gracectl.admission.settings import CertificateFiles
from gracectl.runtime.certificates import Pair
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
SETTLING_SECONDS: Final = 180.0
"""Kubelets write a Secret into the volumes of its pods when they come to it: up to two minutes lie between the first
and the last replica that sees a new one."""


class FiledCertificate:
    """See the module."""

    def __init__(self, files: CertificateFiles, identity: Identity, clock: Clock) -> None:
        self._files = files
        self._identity = identity
        self._clock = clock
        self._complaint = ""

    async def run(self) -> None:
        """A part: offer what is in the files, until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Read the files once. Small files of a memory file system: nothing to wait for."""
        try:
            self._identity.offer(self._read())
        except (OSError, ValueError) as error:
            self._complain(str(error))
        else:
            self._complaint = ""

    def _read(self) -> Material:
        files = self._files
        certificate = Path(files.cert_file).read_bytes()
        key = Path(files.key_file).read_bytes()
        authorities = Path(files.ca_file).read_bytes() if files.ca_file else b""
        return Material(Pair(certificate, key), authorities)

    def _complain(self, text: str) -> None:
        if text == self._complaint:
            return
        self._complaint = text
        kept = "the one that was there is kept" if self._identity.is_ready else "nobody can be answered until there is"
        logger.warning(
            "there is no certificate in %s and %s: %s; %s",
            self._files.cert_file,
            self._files.key_file,
            text,
            kept,
        )
