"""What every way of recording an event rests on: where the rings are, and that no failure reaches the host."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any, Self

from kvwitness.audit.trace.privacy import Scrubber
from kvwitness.audit.trace.pseudonym import MIN_KEY_BYTES, pseudonym
from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE, Sizes
from kvwitness.gpu_tracer.encode import Encoder
from kvwitness.gpu_tracer.ring import Ring
from kvwitness.gpu_tracer.threads import Lease, Pen, Pens, PerThread, tell_of_forks

KEY_VARIABLE = "KVWITNESS_TENANT_KEY"
_log = logging.getLogger("kvwitness.gpu_tracer")


class Recorder(PerThread):
    """Records events of the vocabulary in rings, one for each thread that has something to record.

    Nothing here raises into the host: what goes wrong is counted, said once in the log of this package, and stands in
    the ring as a loss.
    """

    # shared by all threads; everything else is each thread's own (see `PerThread`)
    __slots__ = ("_directory", "_key", "_pens", "_sizes", "errors", "problem", "source")

    _lease: Lease | None = None

    source: str
    errors: Counter[str]
    """What went wrong, by the name of the exception -> how often."""
    problem: str | None
    """Why nothing is recorded although there is a directory; None while all is well."""

    def __init__(
        self,
        directory: str | Path | None,
        source: str,
        *,
        sizes: Sizes | None = None,
        tenant_key: bytes | None = None,
    ) -> None:
        """Record into `directory` (None: record nothing) as `source`, which is `engine/rank`, `gateway` or the like.

        `sizes` are those of each ring. With `tenant_key` (at least 16 bytes) tenants are recorded only under
        pseudonyms, the same as those of a store with that key.
        """
        if hasattr(self, "source"):
            return  # another thread than the one that made it meets the object for the first time
        self.source, self.errors, self.problem = source, Counter(), None
        self._directory = None if directory is None else Path(directory)
        self._sizes, self._key = sizes or Sizes(), tenant_key
        self._pens = Pens(self._make)
        if tenant_key is not None and len(tenant_key) < MIN_KEY_BYTES:
            # to record names that were to be hidden would be worse than to record nothing
            self._give_up(f"the key for pseudonyms is shorter than {MIN_KEY_BYTES} bytes")
        elif directory is None:
            self._pens.close()
        tell_of_forks(self)

    @classmethod
    def from_environment(cls, source: str, *, sizes: Sizes | None = None) -> Self:
        """As the environment says: KVWITNESS_RING_DIR names the directory; without it nothing is recorded.

        KVWITNESS_TENANT_KEY, or the file that KVWITNESS_TENANT_KEY_FILE names, is the key for pseudonyms.
        """
        directory = os.environ.get(DIRECTORY_VARIABLE) or None
        try:
            key = configured_key() if directory else None
        except OSError as error:
            recorder = cls(None, source, sizes=sizes)
            recorder._give_up(f"the key for pseudonyms cannot be read: {error}")
            return recorder
        return cls(directory, source, sizes=sizes, tenant_key=key)

    @property
    def active(self) -> bool:
        """Whether events of the calling thread are recorded; makes its ring if it has none yet."""
        return self._pen() is not None

    @property
    def rings(self) -> tuple[Path, ...]:
        """The ring files of this process."""
        return tuple(pen.ring.path for pen in self._pens.made)

    def close(self) -> None:
        """Record nothing more, in any thread; the rings may be removed once they are read to their end.

        A process that ends, however it does, needs no close.
        """
        self._pens.close()
        vars(self).clear()

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record an event of any kind, with fields as in the JSON form; None is as good as absent.

        Fields and kinds outside the vocabulary are kept as the trace format says, once what must not be in a trace has
        been dropped from them. `t` is when it was observed (s, or integer ns); absent means now. `source` and `seq` are
        the ring's.
        """
        self._event(kind, fields)

    def forked(self) -> None:
        """In a process that was forked off: the rings are the parent's; this one makes its own at its first event."""
        self._pens.leave()
        vars(self).clear()

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        pen = self._pen()
        if pen is None:
            return
        try:
            pen.encoder.record(kind, fields)
        except Exception as error:
            self._failed(pen, kind, error)

    def _pen(self) -> Pen | None:
        """The calling thread's."""
        if not self._pens.open:
            return None
        if self._lease is None:
            self._lease = self._pens.take()
        return None if self._lease is None else self._lease.pen

    def _failed(self, pen: Pen, kind: object, error: Exception) -> None:
        name = type(error).__name__
        self.errors[name] += 1
        if self.errors[name] == 1:
            # not the text of the error: it could quote what must not be written anywhere
            _log.warning("an event could not be recorded: %s (said once)", name)
        try:
            pen.ring.lost(str(kind)[:32], name)
        except Exception:
            self.errors["loss not recorded"] += 1

    def _make(self) -> Pen | None:
        assert self._directory is not None  # else nothing asks for a pen
        try:
            return _pen(self._directory, self.source, self._sizes, self._key, self)
        except Exception as error:
            self._give_up(f"no ring in {self._directory}: {error}")
            return None

    def _give_up(self, problem: str) -> None:
        # once and for all: to try again at every event would be slow, and a record with a hole is no better
        self._pens.close()
        self.problem = problem
        self.errors["no ring"] += 1
        _log.warning("nothing is recorded: %s", problem)


def _pen(directory: Path, source: str, sizes: Sizes, key: bytes | None, recorder: Recorder) -> Pen:
    dropped = _Dropped()
    scrubber = Scrubber(dropped)

    def clean(text: str) -> str:
        return scrubber.text("request", text) or ""

    hide = None if key is None else (lambda tenant: pseudonym(key, tenant))
    ring = Ring(directory, source, sizes, clean=clean, pseudonym=hide)
    dropped.ring = ring
    return Pen.of(ring, Encoder(ring, scrubber), recorder._event)


class _Dropped(dict[str, int]):
    """What was dropped, by name; the ring counts along."""

    ring: Ring | None = None

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__(name, count)
        if self.ring is not None:
            self.ring.count_scrubbed(1)


def configured_key() -> bytes | None:
    """The key for pseudonyms, as the environment gives it; None without one. Raises OSError for an absent file."""
    if file := os.environ.get(f"{KEY_VARIABLE}_FILE"):
        return Path(file).expanduser().read_bytes().strip()
    value = os.environ.get(KEY_VARIABLE)
    return value.encode() if value is not None else None
