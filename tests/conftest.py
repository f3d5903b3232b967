"""What all tests share: the kernel is compiled once per process, and there are no time limits."""

from __future__ import annotations

from hypothesis import settings

from kvwitness.audit.provenance import native

native.compiled()  # costs a second; interpreting the larger traces of the tests costs many
settings.register_profile("kvwitness", deadline=None)  # timing never decides a test
settings.load_profile("kvwitness")
