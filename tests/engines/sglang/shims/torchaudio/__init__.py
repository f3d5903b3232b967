"""Stands in for a library that needs CUDA and is imported, not used."""

from torchaudio import functional, transforms

__all__ = ["functional", "transforms"]
