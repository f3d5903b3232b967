"""kvwitness.audit.cli"""
