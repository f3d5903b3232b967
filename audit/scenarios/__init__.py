"""Known incidents as traces: generated ones with their ground truth, and recordings of real engines.

`kvwitness demo` judges them in front of a newcomer; the tests compare the audit's answer with what is known.
"""
