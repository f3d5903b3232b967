"""kvwitness.audit"""
