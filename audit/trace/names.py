"""What a field's name says about its value: prompt or output content, a secret, or a mere measurement of one.

Names are compared without regard to case, separators or Unicode compatibility forms: `promptText`,
`PROMPT-TEXT` and `gen_ai.prompt_text` are alike.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SECRETS = _words("""
    salt apikey authoriz authoris authtoken accesstoken refreshtoken idtoken bearer password passwd
    passphrase secret cookie credential privatekey sessiontoken clienttoken signingkey accesskey jwt
""")
"""A name that contains one of these is a secret's."""
SECRET_NAMES = frozenset(_words("auth token pwd"))
"""Whole names of secrets."""
CONTENTS = _words("""
    prompt message text content completion logprob logit embed hiddenstate transcript conversation dialog
    utterance instruction question answer document response reply generated reasoning thinking thought
    toolcall functioncall arguments choices image audio video pixel multimodal snippet excerpt body
    payload vector activation history input output query
""")
"""A name that contains one of these is content's: what users sent, models said, or numbers made from it."""
CONTENT_NAMES = frozenset(_words("context contexts ragcontext system assistant chat turn turns delta"))
"""Whole names of content."""
HARMLESS = _words("context tokenizer tokeniser")
"""Parts of names that contain one of the above and do not mean it."""
MEASURES = frozenset(
    _words("""
        tokens count counts len lens length lengths size sizes bytes num number n total max min limit mean
        avg sum ms us ns s sec secs seconds time duration latency rate ratio percent pct dim dims heads
        layers blocks pages slots index idx offset pos position rank version ttl depth width budget quota
        status code age elapsed throughput tps hits misses
    """)
)
"""Words that turn a name into that of a measurement, which may be a number."""
_MEASURE_ENDS = ("tokens", "count", "length", "len", "bytes", "size")
FINGERPRINTS = frozenset(_words("hmac hash sha sha1 sha256 sha512 digest fingerprint checksum md5 crc"))
"""Words that turn a name into that of a fingerprint, which may be a short string without spaces."""
CATEGORIES = frozenset(_words("type format kind mode version status state encoding class source engine backend parser"))
"""Last words that turn a content name into that of a category, which may be a short word."""
TOKEN_HINTS = frozenset(_words("tok toks token tokens vocab sequence sequences"))
"""Words under which a long list of small integers is taken for token ids."""
OTHER_IDS = frozenset(
    _words("""
        page pages block blocks slot slots rank ranks worker workers gpu gpus device devices layer layers
        expert experts request requests req reqs step steps group groups node nodes virtual physical
    """)
)
"""Words that say which ids a name ending in `ids` speaks of; without one they are taken for token ids."""
MAX_NAME = 64
"""Longest name of a field outside the vocabulary; a longer one could be content itself."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


@dataclass(frozen=True)
class NameSense:
    """What a name says."""

    secret: bool
    content: bool
    token: bool
    """It speaks of tokens: token ids, a token, or a number of tokens."""
    measure: bool
    fingerprint: bool
    category: bool
    token_hint: bool

    @property
    def sensitive(self) -> bool:
        """Of a secret, of content or of tokens, be it measured or not."""
        return self.secret or self.content or self.token


@lru_cache(maxsize=4096)
def sense(name: str) -> NameSense:
    """Judge a name of at most `MAX_NAME` characters."""
    plain = unicodedata.normalize("NFKC", name)
    words = [w.lower() for w in _PARTS.findall(plain)]
    whole = "".join(c for c in plain.casefold() if c.isalnum())
    flat = whole
    for part in HARMLESS:
        flat = flat.replace(part, "")
    return NameSense(
        secret=any(s in flat for s in SECRETS) or whole in SECRET_NAMES,
        content=any(s in flat for s in CONTENTS) or whole in CONTENT_NAMES,
        token="token" in flat or whole in ("toks", "inputids", "outputids"),
        measure=not MEASURES.isdisjoint(words) or whole.endswith(_MEASURE_ENDS),
        fingerprint=not FINGERPRINTS.isdisjoint(words) or whole.endswith(("hmac", "hash", "digest")),
        category=bool(words) and words[-1] in CATEGORIES,
        token_hint=not TOKEN_HINTS.isdisjoint(words)
        or whole.endswith("tokens")
        or (whole.endswith("ids") and OTHER_IDS.isdisjoint(words)),
    )
