"""kvwitness.audit.store"""
