"""kvwitness.audit.rules"""
