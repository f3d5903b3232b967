"""A short way for what happens to a prefix cache with every page that fills: found, made findable, no longer findable.

`Tracer.share`, `.publish` and `.unpublish` take any field and look at each; here the fields are known, keys and digests
are fingerprints already, and the record is written in a few steps. What does not fit goes the general way.
"""

from __future__ import annotations

import struct
from typing import Any

from kvwitness.audit.trace.ring import CODES, FIELD_NUMBERS, ITEM, PIECE, Flag, ItemForm
from kvwitness.gpu_tracer.base import Recorder
from kvwitness.gpu_tracer.shadow import Watched

_PUBLISH, _SHARE, _UNPUBLISH = (CODES[f"page.{kind}"] for kind in ("publish", "share", "unpublish"))
_PAGES, _TOK, _ARENA = int(Flag.PAGES), int(Flag.TOK), int(Flag.ARENA)
_KEY, _DIGEST = FIELD_NUMBERS["key"], FIELD_NUMBERS["digest"]
_TEXT = int(ItemForm.TEXT)
_DIGITS = 16
_ITEM = ITEM.format.lstrip("<") + f"{_DIGITS}s"
_ONE = struct.Struct(PIECE.format + _ITEM)
_BOTH = struct.Struct(PIECE.format + _ITEM + _ITEM)
"""A piece of the arena with the key, or with key and digest."""
_MAX = 2**32 - 1


class CacheRecorder:
    """Records single pages of one pool for a recorder; from any thread, and without raising, like the recorder."""

    def __init__(self, recorder: Recorder | Watched, pool: str) -> None:
        self._recorder, self._pool = recorder, pool
        self._shadow = recorder if isinstance(recorder, Watched) else None

    def publish(self, page: int, request: str, key: str, digest: str | None) -> None:
        """A page of a request became findable; `key` and `digest` are 16 characters of ASCII."""
        if self._shadow is not None:
            self._shadow.tell("publish", self._pool, page, key=key, digest=digest)
        if not self._put(_PUBLISH, page, request, None, key, digest, None):
            self._recorder.event("page.publish", pool=self._pool, pages=[page], request=request, key=key, digest=digest)

    def share(
        self, page: int, request: str, tenant: str | None, key: str, digest: str | None, tok: tuple[int, int]
    ) -> None:
        """A request attaches to a page for positions `tok`."""
        if self._shadow is not None:
            self._shadow.tell("share", self._pool, page, request, key=key, digest=digest, tok=tok, tenant=tenant)
        if not self._put(_SHARE, page, request, tenant, key, digest, tok):
            self._recorder.event(
                "page.share", pool=self._pool, pages=[page], request=request, tenant=tenant, key=key, digest=digest,
                tok=tok,
            )  # fmt: skip

    def unpublish(self, page: int, reason: str) -> None:
        """A page is no longer findable."""
        recorder: Any = self._recorder
        pen = recorder._pen()
        if pen is None:
            return
        try:
            texts = pen.ring.texts
            pen.ring.put(_UNPUBLISH, _PAGES, 0, 0, 0, texts[self._pool], texts[reason], page, 1)
        except Exception:
            recorder.event("page.unpublish", pool=self._pool, pages=[page], reason=reason)

    def _put(
        self, code: int, page: int, request: str, tenant: str | None, key: str, digest: str | None,
        tok: tuple[int, int] | None,
    ) -> bool:  # fmt: skip
        """Write a record; whether that was possible."""
        recorder: Any = self._recorder
        pen = recorder._pen()
        if pen is None:
            return True  # nothing is recorded at all
        ring = pen.ring
        try:
            one = key.encode("ascii")
            other = b"" if digest is None else digest.encode("ascii")
            if len(one) != _DIGITS or (digest is not None and len(other) != _DIGITS) or not 0 <= page <= _MAX:
                return False
            flags = _PAGES | _ARENA
            whose = 0 if tenant is None else ring.tenants[tenant]
            if tok is None:
                tok = (0, 0)
            else:
                flags |= _TOK
            texts = ring.texts
            named, pool = texts[request], texts[self._pool]
            if digest is None:
                arena = ring.packed(_ONE, 1, _KEY, _TEXT, 0, _DIGITS, one)
            else:
                arena = ring.packed(_BOTH, 2, _KEY, _TEXT, 0, _DIGITS, one, _DIGEST, _TEXT, 0, _DIGITS, other)
            ring.put(code, flags, arena, named, whose, pool, 0, page, 1, tok)
        except Exception:
            return False
        return True
