"""Strict reading of configuration: every value is asked for by name and type, and what nobody asked for is an error.

Each message names the file, the line where it can be found, the key, what is there and what should be.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from math import inf, isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.errors import KvwitnessError

_NOTHING: Any = object()
LAST_YEAR = 2261
"""The last whole year that nanoseconds since the Unix epoch can tell."""
LONGEST_NS = duration_ns("36500d")
"""The longest duration that can be meant, a hundred years."""


class ConfigError(KvwitnessError):
    """Something in the configuration is not as it has to be."""


class Section:
    """One table of a configuration file."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        file: Path,
        text: str,
        path: tuple[str, ...] = (),
        nth: int = 0,
        inside: Section | None = None,
    ) -> None:
        self._raw, self._file, self._text, self._path, self._nth, self._inside = raw, file, text, path, nth, inside
        self._asked: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        self._asked[key] = None
        return key in self._raw

    def error(self, key: str, what: str, advice: str = "") -> ConfigError:
        """An error about one key of this table."""
        name = ".".join([*self._path, key])
        return ConfigError(f"{self._file}, {self._where(key)}{name} {what}.", advice)

    def _where(self, key: str) -> str:
        """`line N: ` of the key, else of the table that it belongs to, where the text shows it plainly."""
        number = self._line(key)
        return "" if number is None else f"line {number}: "

    def _line(self, key: str) -> int | None:
        if self._file.suffix in (".yaml", ".yml"):
            return self._line_in_yaml(key)
        inside, seen, begin = not self._path, -1, None
        for number, line in enumerate(self._text.splitlines(), start=1):
            if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
                names = tuple(part.strip().strip("\"'") for part in header[1].split("."))
                seen += names == self._path
                inside = names == self._path and seen == self._nth
                begin = number if inside else begin
                if names == (*self._path, key):
                    return number
            elif inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=:]", line):
                return number
        if begin is None and self._inside is not None:  # a table within one line of another
            return self._inside._line(self._path[-1])
        return begin

    def _line_in_yaml(self, key: str) -> int | None:
        wanted = [*self._path, key]
        for number, line in enumerate(self._text.splitlines(), start=1):
            if re.match(rf"\s*[\"']?{re.escape(wanted[0])}[\"']?\s*:", line):
                wanted.pop(0)
            if not wanted:
                return number
        return None

    def _take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        self._asked[key] = None
        if key not in self._raw:
            if default is _NOTHING:
                near = difflib.get_close_matches(key, [name for name in self._raw if name not in self._asked], n=1)
                raise self.error(key, f"is missing; it has to be {what}", f"There is {near[0]}." if near else "")
            return default
        value = self._raw[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"is {value!r}; it has to be {what}")
        return value

    def text(self, key: str, default: Any = _NOTHING) -> Any:
        """A text that is not empty."""
        value = self._take(key, str, "a text", default)
        if value == "" and key in self._raw:
            raise self.error(key, "is empty; it has to be a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value: bool = self._take(key, bool, "true or false", default)
        return value

    def number(self, key: str, default: Any = _NOTHING, *, low: float = 0, high: float = inf) -> Any:
        """A number within bounds."""
        value = self._take(key, (int, float), "a number", default)
        if value is not None and not (low <= value <= high and isfinite(value)):
            raise self.error(key, f"is {value}; it has to be {_range(low, high)}")
        return value

    def whole(self, key: str, default: int, *, low: int = 0, high: float = inf) -> int:
        """A whole number within bounds."""
        value = self.number(key, default, low=low, high=high)
        if value != int(value):
            raise self.error(key, f"is {value}; it has to be a whole number")
        return int(value)

    def choice(self, key: str, known: Sequence[str], default: Any = _NOTHING) -> Any:
        """One of some words."""
        value = self._take(key, str, "one of " + ", ".join(known), default)
        if value is not None and value not in known:
            raise self.error(key, f"is {value!r}; it has to be one of {', '.join(known)}", _meant(value, known))
        return value

    def texts(self, key: str, default: Sequence[str] | None = None, known: Sequence[str] | None = None) -> Any:
        """A list of texts; a single one may stand without brackets."""
        value = self._take(key, (str, list), "a text or a list of texts", _NOTHING if default is None else default)
        listed = [value] if isinstance(value, str) else list(value)
        if not listed and key in self._raw:
            raise self.error(key, "is empty; it has to hold one text or more")
        for item in listed:
            if not isinstance(item, str):
                raise self.error(key, f"holds {item!r}; it has to be a list of texts")
            if known is not None and item not in known:
                raise self.error(key, f"holds {item!r}; known are {', '.join(known)}", _meant(item, known))
        return tuple(listed)

    def duration(self, key: str, default: str | None = None) -> int:
        """A length of time such as `15m`, in nanoseconds."""
        value = self._take(key, str, "a duration such as 30s, 15m, 1h30m or 7d", default or _NOTHING)
        try:
            length = duration_ns(value)
        except ValueError:
            raise self.error(key, f"is {value!r}; it has to be a duration such as 30s, 15m, 1h30m or 7d") from None
        if length > LONGEST_NS:
            raise self.error(key, f"is {value!r}; it has to be a hundred years at most")
        return length

    def url(self, key: str, default: Any = _NOTHING) -> Any:
        """An address with http or https, in place or behind `{env = ...}` or `{file = ...}`."""
        value = self.secret(key, default)
        if value is not None and not _address(value):
            raise self.error(key, "has to be an address that begins with http:// or https://")
        return value

    def secret(self, key: str, default: Any = _NOTHING) -> Any:
        """A text that may be kept elsewhere: `{env = "NAME"}` or `{file = "PATH"}`."""
        value = self._take(key, (str, dict), 'a text, {env = "NAME"} or {file = "PATH"}', default)
        if not isinstance(value, dict):
            return value
        if set(value) == {"env"} and isinstance(value["env"], str):
            found = os.environ.get(value["env"], "").strip()
            if not found:
                raise self.error(key, f"points to the environment variable {value['env']}, which is not set")
            return found
        if set(value) == {"file"} and isinstance(value["file"], str):
            return self._from_file(key, self._beside(value["file"]))
        raise self.error(key, 'has to be a text, {env = "NAME"} or {file = "PATH"}')

    def _from_file(self, key: str, path: Path) -> str:
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise self.error(key, f"points to {path}, which cannot be read: {exc}") from exc
        if not found:
            raise self.error(key, f"points to {path}, which is empty")
        return found

    def path(self, key: str) -> Path:
        """A path; a relative one begins where the configuration stands."""
        return self._beside(self.text(key))

    def readable(self, key: str) -> str | None:
        """A file that is there and can be read, such as a certificate; None when it is not named."""
        if key not in self:
            return None
        found = self.path(key)
        try:
            found.open("rb").close()
        except OSError as exc:
            raise self.error(key, f"names {found}, which cannot be read: {exc.strerror}") from exc
        return str(found)

    def _beside(self, path: str) -> Path:
        return self._file.parent / path

    def moment(self, key: str, zone: str) -> int:
        """A date or a time, in nanoseconds since the Unix epoch; a date means its end, a time without offset is one of
        the zone."""
        value = self._take(key, date, "a date or a time, such as 2027-03-31 or 2027-03-31T18:00:00Z", _NOTHING)
        if not 1971 <= value.year <= LAST_YEAR:
            raise self.error(key, f"is {value}; it has to lie in the years from 1971 to {LAST_YEAR}")
        if not isinstance(value, datetime):
            value = datetime.combine(value + timedelta(days=1), time())
        if value.tzinfo is None:
            value = value.replace(tzinfo=ZoneInfo(zone))
        return int(value.timestamp()) * SECOND_NS

    def minute(self, key: str) -> int:
        """A time of day, in minutes since midnight: `"22:00"`, or a TOML time."""
        value = self._take(key, (str, time), 'a time of day such as "22:00"', _NOTHING)
        try:
            told = value if isinstance(value, time) else time.fromisoformat(value)
        except ValueError:
            raise self.error(key, f'is {value!r}; it has to be a time of day such as "22:00"') from None
        if told.tzinfo is not None:
            raise self.error(
                key, f"is {value!r}; it has to be a time without offset", "`timezone` says where it holds."
            )
        return told.hour * 60 + told.minute

    def zone(self, key: str, default: str) -> str:
        """The name of a time zone."""
        name: str = self.text(key, default)
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise self.error(key, f"is {name!r}, which is no time zone known here", "Europe/Paris is one.") from None
        return name

    def section(self, key: str) -> Section:
        """A table in this table; an empty one where there is none."""
        raw = self._take(key, dict, "a table", {})
        return Section(raw, self._file, self._text, (*self._path, key), inside=self)

    def sections(self, key: str) -> list[Section]:
        """A list of tables (`[[key]]`)."""
        raw = self._take(key, list, f"a list of tables, [[{'.'.join([*self._path, key])}]]", [])
        for one in raw:
            if not isinstance(one, dict):
                raise self.error(key, f"has to be a list of tables, [[{'.'.join([*self._path, key])}]]")
        return [Section(one, self._file, self._text, (*self._path, key), nth, self) for nth, one in enumerate(raw)]

    def names(self) -> list[str]:
        """Every key; they count as asked for."""
        self._asked |= dict.fromkeys(self._raw)
        return list(self._raw)

    def raw(self, key: str) -> Any:
        """A value as it stands."""
        self._asked[key] = None
        return self._raw[key]

    def done(self) -> None:
        """Raise `ConfigError` for a key that nobody asked for."""
        for key in self._raw:
            if key not in self._asked:
                raise self.error(key, "is not known here", _meant(key, list(self._asked)))


def _range(low: float, high: float) -> str:
    return f"{low:g} or more" if high == inf else f"from {low:g} to {high:g}"


def _address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is none
        return False


def _meant(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]}?" if near else (f"Known here: {', '.join(known)}." if known else "")
