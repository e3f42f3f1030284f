"""Certificates in files that others keep: the server's own (as cert-manager does in a mounted Secret), and the
authorities of API servers' client certificates.

The files are read again and again, and what is new in them is offered. Invariant: what cannot be read, or does not
belong together, changes nothing, and is told once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from gracectl.admission.identity import Identity, Material
from gracectl.admission.settings import CertificateFiles
from gracectl.runtime.certificates import KeyPair
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
        return Material(KeyPair(certificate, key), authorities)

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


class ClientAuthorities:
    """Authorities of client certificates, in a file that is read again when it may have changed."""

    def __init__(self, file: str, identity: Identity, clock: Clock) -> None:
        self._file = file
        self._identity = identity
        self._clock = clock
        self._complaint = ""

    async def run(self) -> None:
        """A part: keep to what the file says, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                self.require()
            except ValueError as error:
                if str(error) != self._complaint:
                    logger.warning("%s; the client certificates that were accepted before still are", error)
                self._complaint = str(error)
            else:
                self._complaint = ""

    def require(self) -> None:
        """Ask clients for certificates of what is in the file now. ValueError if it cannot be used."""
        field = f"admission.clientCertificates.caFile: {self._file}"
        try:
            self._identity.require(Path(self._file).read_bytes())
        except OSError as error:
            raise ValueError(f"{field} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"{field} is no PEM file of certificates: {error}") from error
