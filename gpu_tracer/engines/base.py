"""What an adapter is made of: hooks around methods of an engine, put on in memory, none of which can hurt the engine.

An engine is one file in this folder that exports `ENGINE`. It names the methods it wants to watch, each as a `Hook`
with the observers that are called before and after it, and the kinds of event that come from there. Everything else
is here:

- The engine's modules are imported only when the adapter is attached or asked what it would attach to.
- A method that this version of the engine does not have is left out, and what is not seen for want of it is known:
  `Attachment.unseen` names the kinds, and the adapter writes them into the record (see `Blind`).
- An observer that raises is counted, said once in the log, and the engine goes on. It also becomes a `telemetry.gap`,
  because whoever reads the record must know that something is missing there.
- To attach twice is to attach once.

To add an engine: write the file, declare the engine's plug-in entry point in `pyproject.toml` where it has one, and add
`tests/engines/NAME/`.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

_log = logging.getLogger("kvwitness.gpu_tracer")
ENGINE_VARIABLE = "KVWITNESS_ENGINE"
"""Name of the engine."""
SHARING_VARIABLE = "KVWITNESS_SHARING"
"""Who may share pages by policy: `none`, `tenant` or `global`."""
CLOCK_VARIABLE = "KVWITNESS_CLOCK_UNCERTAINTY_S"
"""How far this host's clock may be off, in seconds."""

REMEMBERED = 100_000
"""Ids of requests that an adapter remembers, so that a client's second use of one is not taken for the first."""

_MARK = "__kvwitness_hook__"

Observer = Callable[..., Any]
Gap = Callable[[str], None]
"""Writes into the record that something was not seen, given why."""


@dataclass(frozen=True)
class Hook:
    """A method of an engine that is watched."""

    target: str
    """`package.module:Class.method`."""
    kinds: tuple[str, ...]
    """Kinds of event that come from it; without it they are missing, or lack what it tells."""
    before: Observer | None = None
    """Called with the method's arguments; what it returns goes to `after`."""
    after: Observer | None = None
    """Called with what `before` returned (else None), the result, and the method's arguments."""
    replace: Callable[[Callable[..., Any], Guard], Callable[..., Any]] | None = None
    """Instead of the two: makes the method anew, for what they cannot express. It has to guard itself."""
    raised: Callable[[], None] | None = None
    """Called when the method itself raises, to forget what `before` began. Must not raise."""
    unproven: tuple[str, ...] = ()
    """Rules that cannot decide without it."""
    optional: bool = False
    """Whether the record is whole without it, for the engine versions that do not have the method."""

    @property
    def name(self) -> str:
        """`Class.method`."""
        return self.target.partition(":")[2]


@dataclass(frozen=True)
class Missing:
    """A hook that could not be put on, and why."""

    hook: Hook
    reason: str


@dataclass(frozen=True)
class Engine:
    """An adapter, as `kvwitness attach check` and the tests see it."""

    name: str
    distributions: tuple[str, ...]
    """Names under which the engine is installed, in order of preference."""
    hooks: tuple[Hook, ...]
    tested: tuple[str, ...]
    """Versions that the adapter's own tests have run on."""
    how: str
    """How it is attached, in one sentence for people."""
    limits: tuple[str, ...] = ()
    """What is not seen even if all hooks attach, each in one sentence for people."""

    def installed(self) -> tuple[str, str] | None:
        """Distribution and version of the engine in this environment; None where there is none."""
        for name in self.distributions:
            try:
                return name, metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return None


@dataclass
class Attachment:
    """What became of the hooks of an engine."""

    attached: list[Hook] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Kinds of event that will be missing or incomplete."""
        return tuple(dict.fromkeys(k for m in self.missing if not m.hook.optional for k in m.hook.kinds))

    @property
    def unproven(self) -> tuple[str, ...]:
        """Rules that will not be able to decide."""
        return tuple(sorted({rule for m in self.missing if not m.hook.optional for rule in m.hook.unproven}))


class Guard:
    """Keeps what goes wrong in observers away from the engine, and counts it."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        """`Class.method: exception` -> how often."""
        self.gap: Gap | None = None
        """Where to put down that something was not seen; set by the adapter once it records."""

    def failed(self, name: str, error: BaseException) -> None:
        """Count an observer's failure. Does not raise."""
        what = f"{name}: {type(error).__name__}"
        self.errors[what] += 1
        if self.errors[what] == 1:
            # not the text of the error: it could quote what must not be written anywhere
            _log.warning("an observer failed, the engine goes on: %s (said once)", what, exc_info=_debugging())
        try:
            if self.gap is not None:
                self.gap(f"not observed: {what}")
        except Exception:
            self.errors["gap not recorded"] += 1


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches [first, end) of consecutive numbers, in the order in which they come."""
    out: list[tuple[int, int]] = []
    for n in numbers:
        if out and out[-1][1] == n:
            out[-1] = (out[-1][0], n + 1)
        else:
            out.append((n, n + 1))
    return out


def _debugging() -> bool:
    return _log.isEnabledFor(logging.DEBUG)


def attach(hooks: Sequence[Hook], guard: Guard) -> Attachment:
    """Put the hooks on. Raises nothing: what cannot be attached stands in the result."""
    out = Attachment()
    for hook in hooks:
        try:
            owner, name, method = resolve(hook.target)
            if not hasattr(method, _MARK):
                setattr(owner, name, _wrapped(hook, method, guard))
            out.attached.append(hook)
        except Exception as error:
            out.missing.append(Missing(hook, _reason(error)))
    for missing in out.missing:
        if not missing.hook.optional:
            _log.warning("not attached to %s: %s", missing.hook.name, missing.reason)
    return out


def survey(hooks: Sequence[Hook]) -> Attachment:
    """What `attach` would do, without doing it. Imports the engine's modules."""
    out = Attachment()
    for hook in hooks:
        try:
            resolve(hook.target)
            out.attached.append(hook)
        except Exception as error:
            out.missing.append(Missing(hook, _reason(error)))
    return out


def detach(hooks: Sequence[Hook]) -> None:
    """Take the hooks off again; for measurements and tests."""
    for hook in hooks:
        try:
            owner, name, method = resolve(hook.target)
        except Exception:  # it was not there to attach to either
            continue
        if hasattr(method, _MARK):
            setattr(owner, name, method.__wrapped__)


def resolve(target: str) -> tuple[Any, str, Any]:
    """Class, attribute and method that a target names. Raises ImportError or AttributeError."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    if name not in vars(owner):  # an inherited method is patched where it is defined, or other classes would change
        raise AttributeError(f"{path} is not there")
    return owner, name, getattr(owner, name)


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"there is no module {error.name}"
    if isinstance(error, AttributeError):
        return "this version does not have it"
    return f"importing it failed: {type(error).__name__}"


def _wrapped(hook: Hook, method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    if hook.replace is not None:
        made = hook.replace(method, guard)
    elif hook.before is None and hook.after is not None:
        made = _observed_after(hook, hook.after, method, guard)
    else:
        made = _observed(hook, method, guard)
    wrapped = functools.wraps(method)(made)
    setattr(wrapped, _MARK, hook.target)
    return wrapped


def _observed_after(hook: Hook, after: Observer, method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    name = hook.name

    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        try:
            after(None, result, *args, **kwargs)
        except Exception as error:
            guard.failed(name, error)
        return result

    return call


def _observed(hook: Hook, method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    name, before, after, raised = hook.name, hook.before, hook.after, hook.raised

    def call(*args: Any, **kwargs: Any) -> Any:
        context = None
        try:
            if before is not None:
                context = before(*args, **kwargs)
        except Exception as error:
            guard.failed(name, error)
        try:
            result = method(*args, **kwargs)
        except BaseException:
            if raised is not None:
                raised()
            raise
        try:
            if after is not None:
                after(context, result, *args, **kwargs)
        except Exception as error:
            guard.failed(name, error)
        return result

    return call
