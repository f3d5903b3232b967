"""Imported, not used."""
