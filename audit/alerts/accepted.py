"""Risk acceptances: those of the configuration, and those that somebody gave by command."""

from __future__ import annotations

from dataclasses import replace

from kvwitness.audit.alerts.config import Acceptance, Config
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.ledger_file import directory
from kvwitness.audit.alerts.matching import Conditions
from kvwitness.audit.store import Store


def given(ledger: Ledger) -> tuple[Acceptance, ...]:
    """Those that were given by command."""
    return tuple(
        Acceptance(
            id=row["id"],
            match=Conditions({name: tuple(values) for name, values in row["conditions"].items()}).matcher(),
            accepted_by=row["accepted_by"],
            until_ns=row["until_ns"],
            reason=row["reason"],
            severity=row["severity"],
            warn_ns=row["warn_ns"],
        )
        for row in ledger.acceptances()
    )


def with_given(config: Config, ledger: Ledger) -> Config:
    """A configuration with the acceptances that were given by command behind its own."""
    return replace(config, acceptances=(*config.acceptances, *given(ledger)))


def given_in(store: Store) -> tuple[Acceptance, ...]:
    """Those that were given by command in a store, for whoever shows them: changes nothing."""
    if not (directory(store) / "ledger.sqlite").exists():
        return ()
    with Ledger.to_read(store) as ledger:
        return given(ledger) if ledger.begun else ()
