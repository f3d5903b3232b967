"""Compile the replay kernel into the cache: `python -m kvwitness.audit.provenance.warmup`."""

from __future__ import annotations

from kvwitness.audit.provenance.replay import kernel

if __name__ == "__main__":
    kernel(True)
