"""What the command tells the pages, which run in a process that Streamlit starts: by the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STORE = "KVWITNESS_STORE"
ALERTS = "KVWITNESS_ALERTS"
PSEUDONYMS = "KVWITNESS_DASHBOARD_PSEUDONYMS"
ROLES = "KVWITNESS_DASHBOARD_ROLES"

APP = Path(os.path.realpath(Path(__file__).parent / "app.py"))
"""The script that Streamlit runs. Its real path: pages are found beside it, however the package was installed."""


@dataclass(frozen=True)
class Settings:
    """What one running dashboard shows, and how."""

    store: Path
    pseudonyms: bool
    """Show nobody the tenants' names."""
    alerts: Path | None
    """Configuration of alerts, in which accepted risks stand; None: not named."""
    roles: Path | None
    """File that says which login has which role; None: there is no login, and whoever reaches the port may write."""

    @classmethod
    def from_environment(cls) -> Settings:
        """As the command left them."""
        roles, alerts = os.environ.get(ROLES), os.environ.get(ALERTS)
        return cls(
            store=Path(os.environ.get(STORE, "kvwitness-store")),
            pseudonyms=os.environ.get(PSEUDONYMS) == "1",
            alerts=Path(alerts) if alerts else None,
            roles=Path(roles) if roles else None,
        )
