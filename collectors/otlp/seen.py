"""Which records came already: a sender that got no answer sends again, and may have been heard the first time."""

from __future__ import annotations


class Seen:
    """Remembers at least the last `capacity` / 2 records, and at most `capacity`."""

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._new: set[int] = set()
        self._old: set[int] = set()

    def known(self, identity: bytes) -> bool:
        """Whether a record came already."""
        key = hash(identity)
        return key in self._new or key in self._old

    def add(self, identity: bytes) -> None:
        """Remember a record.

        Kept as a 64-bit hash under a key that changes with every process: nobody can make up a record that is taken
        for another, and by chance one in 2**44 is, while a million are remembered.
        """
        self._new.add(hash(identity))
        if len(self._new) >= self._half:
            self._old, self._new = self._new, set()

    def __len__(self) -> int:
        return len(self._new) + len(self._old)
