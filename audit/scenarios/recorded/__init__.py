"""Traces recorded from real engines; README.md beside this file says how each came about."""

from pathlib import Path

SGLANG_PLACEHOLDER = Path(__file__).parent / "sglang-0519-placeholder.jsonl"
"""SGLang 0.5.19 answers two refused prompts from other tenants' pages."""

__all__ = ["SGLANG_PLACEHOLDER"]
