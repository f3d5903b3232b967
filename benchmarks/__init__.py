"""Measurements: synthetic traces of any size, and the commands that print what an audit of them costs."""
