"""Certificates in files that others maintain: the server's own (cert-manager, in a mounted Secret), and the authorities
of API servers' client certificates.

The files are read periodically. Invariant: files that cannot be read, or do not belong together, change nothing and are
logged once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from gracectl.admission.serving_certificate import Material, ServingCertificate
from gracectl.admission.settings import CertificateFiles
from gracectl.runtime.certificates import KeyPair
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

RELOAD_SECONDS: Final = 5.0


class FileCertificate:
    """The server's certificate, from files."""

    def __init__(self, files: CertificateFiles, identity: ServingCertificate, clock: Clock) -> None:
        self._files = files
        self._identity = identity
        self._clock = clock
        self._warned = ""

    async def run(self) -> None:
        """Component: offer the content of the files, until cancelled."""
        while True:
            self.reload()
            await self._clock.sleep(RELOAD_SECONDS)

    def reload(self) -> None:
        """Read the files once. Small files of a memory file system: no need for a thread."""
        try:
            self._identity.offer(self._read())
        except (OSError, ValueError) as error:
            self._warn(str(error))
        else:
            self._warned = ""

    def _read(self) -> Material:
        files = self._files
        certificate = Path(files.cert_file).read_bytes()
        key = Path(files.key_file).read_bytes()
        authorities = Path(files.ca_file).read_bytes() if files.ca_file else b""
        return Material(KeyPair(certificate, key), authorities)

    def _warn(self, text: str) -> None:
        if text == self._warned:
            return
        self._warned = text
        kept = "keeping the previous one" if self._identity.is_ready else "no request can be served"
        logger.warning(
            "certificate %s, key %s: %s; %s",
            self._files.cert_file,
            self._files.key_file,
            text,
            kept,
        )


class ClientAuthorities:
    """Authorities of client certificates, from a file."""

    def __init__(self, file: str, identity: ServingCertificate, clock: Clock) -> None:
        self._file = file
        self._identity = identity
        self._clock = clock
        self._warned = ""

    async def run(self) -> None:
        """Component: apply the content of the file, until cancelled."""
        while True:
            await self._clock.sleep(RELOAD_SECONDS)
            try:
                self.require()
            except ValueError as error:
                if str(error) != self._warned:
                    logger.warning("%s; keeping the previous authorities", error)
                self._warned = str(error)
            else:
                self._warned = ""

    def require(self) -> None:
        """Require client certificates of these authorities from now on. ValueError if the file is invalid."""
        field = f"admission.clientCertificates.caFile: {self._file}"
        try:
            self._identity.require_clients(Path(self._file).read_bytes())
        except OSError as error:
            raise ValueError(f"{field}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"{field}: not a PEM file of certificates: {error}") from error
