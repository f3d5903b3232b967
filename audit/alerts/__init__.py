"""Alerts: what the audit found, told to people on a schedule, once, in order, and no more often than it helps.

One check goes one way: `kvwitness.audit.runs` judges the store, `signals` reads what it found, `policy` says what each
is worth, `grouping` puts them together, `decide` keeps in one transaction of the `ledger` what follows and what has to
be said, and `delivery` says it through `sinks`. `check` is one such round, `watch` repeats it.
"""
