"""JSON text by orjson where it is installed, else by the standard library: the tracer has no more than numpy."""

from __future__ import annotations

import json
from typing import Any

try:
    import orjson
except ImportError:

    def parse(text: str) -> Any:
        """The value that `text` stands for; raises ValueError where it is no JSON, or nested too deeply."""
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def canonical(value: Any) -> str:
        """JSON text with sorted keys and no spaces."""
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

else:

    def parse(text: str) -> Any:
        """The value that `text` stands for; raises ValueError where it is no JSON, or nested too deeply."""
        return orjson.loads(text)

    def canonical(value: Any) -> str:
        """JSON text with sorted keys and no spaces."""
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


__all__ = ["canonical", "parse"]
