"""kvwitness.collectors"""
