"""Who a request belongs to, told without what must stay secret: salts and sessions are recorded as keyed hashes only.

The key is that of the tenants' pseudonyms (KVWITNESS_TENANT_KEY or its file). Without one, a random key is made once
in the directory of the rings and shared by all processes that record there: engines on one host agree, and nobody
without that file can try out salts.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.gpu_tracer.base import configured_key

KEY_FILE = "identity.key"
ATTESTED = "kvwitness_tenant"
"""Name of the extra argument under which the middleware hands a tenant to the engine."""
_KEY_BYTES = 32
_DIGITS = 16


class Identity:
    """Names of tenants and salts under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=_KEY_BYTES).digest()

    @classmethod
    def from_environment(cls) -> Identity:
        """With the configured key, else that of the directory. Raises OSError where it cannot be read or made."""
        if key := configured_key():
            return cls(key)
        directory = os.environ.get(DIRECTORY_VARIABLE)
        return cls(_shared_key(Path(directory)) if directory else secrets.token_bytes(_KEY_BYTES))

    def hashed(self, what: str, value: str | bytes) -> str:
        """Keyed hash of a value in the domain `what` (at most 16 bytes), as 16 hex digits."""
        data = value if isinstance(value, bytes) else value.encode()
        # BLAKE2 has a key and a domain of its own, and takes a third of the time of an HMAC
        return hashlib.blake2b(data, key=self._key, person=what.encode(), digest_size=_DIGITS // 2).hexdigest()

    def hasher(self, what: str) -> Callable[[bytes], str]:
        """`hashed` for one domain and bytes, in half the time."""
        begun = hashlib.blake2b(key=self._key, person=what.encode(), digest_size=_DIGITS // 2)

        def hashed(value: bytes) -> str:
            one = begun.copy()
            one.update(value)
            return one.hexdigest()

        return hashed

    def attest(self, tenant: str) -> str:
        """A tenant's name with a proof that it comes from someone who has the key."""
        return f"{self.hashed('attested', tenant)}:{tenant}"

    def attested(self, value: object) -> str | None:
        """The tenant that `attest` was given, or None for anything else, such as what a client made up."""
        if not isinstance(value, str):
            return None
        proof, _, tenant = value.partition(":")
        return tenant if tenant and hmac.compare_digest(proof, self.hashed("attested", tenant)) else None

    def tenant(
        self, *, attested: object = None, salt: str | None = None, session: str | None = None
    ) -> tuple[str, str] | None:
        """Tenant and who supplied it, from the best of what is known; None where nothing is.

        What the middleware attests comes first. A cache salt stands for a tenant because it is what separates tenants
        in the engine's own prefix cache; a session only where there is nothing better.
        """
        if name := self.attested(attested):
            return name, "middleware"
        if salt:
            return f"salt-{self.hashed('salt', salt)}", "cache_salt"
        if session:
            return f"session-{self.hashed('session', session)}", "session"
        return None


def _shared_key(directory: Path) -> bytes:
    """The key of all who record into this directory; whoever comes first makes it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / KEY_FILE
    mine = path.with_name(f"{KEY_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    if not path.exists():
        fd = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, secrets.token_bytes(_KEY_BYTES))
        finally:
            os.close(fd)
        try:
            os.link(mine, path)  # whole or not at all, and only if nobody else was quicker
        except FileExistsError:
            pass
        finally:
            mine.unlink(missing_ok=True)
    return path.read_bytes()
