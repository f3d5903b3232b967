"""A short way for what happens to a prefix cache with every page that fills: found, made findable, no longer findable.

`Tracer.share`, `.publish` and `.unpublish` take any field and look at each; here the fields are known, keys and digests
are fingerprints already, and the record is written in a few steps. What does not fit goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvwitness.audit.trace.ring import CODES, Flag
from kvwitness.gpu_tracer.base import Recorder
from kvwitness.gpu_tracer.records import OURS, fingerprint
from kvwitness.gpu_tracer.shadow import Watched
from kvwitness.gpu_tracer.threads import Pen, PerThread, tell_of_forks

_SHARE, _UNPUBLISH = (CODES[f"page.{kind}"] for kind in ("share", "unpublish"))
_PAGES, _TOK, _ARENA = int(Flag.PAGES), int(Flag.TOK), int(Flag.ARENA)

Publish = Callable[[int, str, str, str | None], None]
Share = Callable[[int, str, str | None, str, str | None, tuple[int, int]], None]
Unpublish = Callable[[int, str], None]


class CacheRecorder(PerThread):
    """Records single pages of one pool for a recorder; from any thread, and without raising, like the recorder.

    As with a `Tracer`, its methods are shadowed in each thread by functions that write into that thread's ring.
    """

    __slots__ = ("_pool", "_recorder", "_shadow")

    def __init__(self, recorder: Recorder | Watched, pool: str) -> None:
        if hasattr(self, "_pool"):
            return  # another thread than the one that made it meets the object for the first time
        self._recorder, self._pool = recorder, pool
        self._shadow = recorder if isinstance(recorder, Watched) else None
        tell_of_forks(self)

    def publish(self, page: int, request: str, key: str, digest: str | None) -> None:
        """A page of a request became findable; `key` and `digest` are 16 characters of ASCII."""
        if self._shadow is not None:
            self._shadow.tell("publish", self._pool, page, key=key, digest=digest)
        self._begin()[0](page, request, key, digest)

    def share(
        self, page: int, request: str, tenant: str | None, key: str, digest: str | None, tok: tuple[int, int]
    ) -> None:
        """A request attaches to a page for positions `tok`."""
        if self._shadow is not None:
            self._shadow.tell("share", self._pool, page, request, key=key, digest=digest, tok=tok, tenant=tenant)
        self._begin()[1](page, request, tenant, key, digest, tok)

    def unpublish(self, page: int, reason: str) -> None:
        """A page is no longer findable."""
        self._begin()[2](page, reason)

    def forked(self) -> None:
        """In a process that was forked off: the rings are the parent's."""
        vars(self).clear()

    def _begin(self) -> tuple[Publish, Share, Unpublish]:
        """Shadow the methods in the calling thread, unless somebody has to be told as well; what writes there."""
        recorder: Any = self._recorder
        pen = recorder._pen()
        if pen is None:
            return _nothing, _nothing, _nothing
        quick = _writers(pen, self._pool, recorder.event)
        if self._shadow is None:
            vars(self).update(zip(("publish", "share", "unpublish"), quick, strict=True))
        return quick


def _writers(pen: Pen, pool: str, general: Callable[..., None]) -> tuple[Publish, Share, Unpublish]:
    """The functions for one ring. `general` takes what they cannot."""
    ring = pen.ring
    put, strings, tenants, known = ring.put, ring.texts, ring.tenants, ring.texts.known

    def share(
        page: int, request: str, tenant: str | None, key: str, digest: str | None, tok: tuple[int, int]
    ) -> None:  # fmt: skip
        try:
            whose = 0 if tenant is None else tenants[tenant]
            texts = {"key": key} if digest is None else {"key": key, "digest": digest}
            items = [fingerprint(name, text) for name, text in texts.items()]
            named, place = strings[request], strings[pool]
            put(_SHARE, _PAGES | _TOK | _ARENA, ring.piece(items), named, whose, place, 0, page, 1, tok)
        except OURS:
            general(
                "page.share", pool=pool, pages=[page], request=request, tenant=tenant, key=key, digest=digest, tok=tok
            )

    def unpublish(page: int, reason: str) -> None:
        try:
            put(_UNPUBLISH, _PAGES, 0, 0, 0, known.get(pool) or strings[pool], known[reason], page, 1)
        except OURS:
            general("page.unpublish", pool=pool, pages=[page], reason=reason)

    return partial(pen.publish, pool), share, unpublish


def _nothing(*_: object) -> None:
    """Stand in where nothing is recorded."""
