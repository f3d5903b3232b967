"""The lab's texts: a character is a token."""

from __future__ import annotations

from collections.abc import Sequence

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,;:=-?!'/\n"
STOP = ";"
"""The answer ends with it."""


def tokens(text: str) -> list[int]:
    """Raises ValueError for a character that the model does not know."""
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown:
        raise ValueError(f"the lab's model knows no {unknown[0]!r}; it knows {ALPHABET!r}")
    return [ALPHABET.index(character) for character in text]


def text(ids: Sequence[int]) -> str:
    """The characters of some tokens."""
    return "".join(ALPHABET[token] for token in ids)
