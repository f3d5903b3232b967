"""kvwitness.audit.provenance"""
