"""kvwitness.dashboards"""
