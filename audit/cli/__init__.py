"""The command line: parse, call, print. What it calls lives in the other packages and knows nothing of it."""

from kvwitness.audit.cli.app import main

__all__ = ["main"]
