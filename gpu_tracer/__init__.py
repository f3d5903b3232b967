"""Runs inside the serving process and records what happens to KV-cache pages; needs numpy alone."""
