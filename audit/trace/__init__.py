"""kvwitness.audit.trace"""
