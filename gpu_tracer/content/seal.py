"""Digests that show nothing but whether they are equal: a MAC of each fingerprint, made on the host.

A fingerprint is quick because it is nearly linear in what it is taken of: whoever sees fingerprints of rows that they
chose learns something about the key, and can make two rows agree in the end. A sealed one is a keyed BLAKE2b of the
fingerprint, of how many slots it covers and of the layer's place. Without the secret it cannot be told from random,
except that equal ones are equal, which is all that the audit asks. Both together are a MAC of the page's bytes, in the
manner of Carter and Wegman: the fingerprint carries the load, the MAC the secrecy. It is no proof of when, by whom or
for whom a digest was recorded: an old one, put on record again, is still a good one.

Plain Python, nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from kvwitness.gpu_tracer.content.reference import MIN_SECRET_BYTES

BYTES = 16
"""Of each sealed layer."""
_PLAIN = re.compile(r"(nh\d+)/(\d+):([0-9a-f]+(?:\.[0-9a-f]+)*)")


class Seal:
    """Seals digests under a secret, which has to be the same on all sides that are to be compared.

    Raises ValueError for a secret of fewer than 16 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret of a seal has {len(secret)} bytes; {MIN_SECRET_BYTES} are the least")
        # not the secret itself, from which the keys of fingerprints are drawn
        self._key = hashlib.shake_256(b"kvwitness seal 1" + secret).digest(32)

    def sealed(self, digests: Sequence[str]) -> list[str]:
        """`nh64/SLOTS:LAYER...` as `nh64-mac/SLOTS:LAYER...`, in the same order; 32 digits for each layer.

        Raises ValueError for what is no digest, or is sealed already.
        """
        return [self._one(digest) for digest in digests]

    def _one(self, digest: str) -> str:
        told = _PLAIN.fullmatch(digest)
        if told is None:
            raise ValueError(f"not a digest as Fingerprints.digests returns it: {digest[:40]}")
        scheme, slots, layers = told.groups()
        macs = [self._mac(f"{scheme}/{slots}:{at}:{layer}") for at, layer in enumerate(layers.split("."))]
        return f"{scheme}-mac/{slots}:" + ".".join(macs)

    def _mac(self, of: str) -> str:
        return hashlib.blake2b(of.encode(), key=self._key, digest_size=BYTES).hexdigest()
