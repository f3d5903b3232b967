"""Who looks, and what they may see and do.

Without a file of roles there is no login: the port is open to this machine alone, and whoever reaches it may do
everything. With one, people log in through OpenID Connect (`st.login`), and the file says who is what:

    [auth]                      # Streamlit's own: client_id, client_secret, cookie_secret, redirect_uri, ...
    [roles]
    responder = ["ada@example.com", "@security.example.com"]
    viewer = ["*"]

A responder sees names and may write notes; a viewer sees tenants under pseudonyms, and asks no questions in SQL.
Whoever is in neither list sees nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path

import streamlit as st

from kvwitness.audit.errors import KvwitnessError
from kvwitness.dashboards.settings import Settings


class Role(StrEnum):
    """What somebody may see and do."""

    RESPONDER = "responder"
    """Everything."""
    VIEWER = "viewer"
    """No names of tenants, no SQL, no notes."""
    NOBODY = "nobody"
    """Nothing."""


def role_of(login: str | None, roles: Mapping[str, Sequence[str]]) -> Role:
    """The role of a verified e-mail address: the strongest whose list has it, its domain (`@example.com`) or `*`."""
    if not login:
        return Role.NOBODY
    name = login.casefold()
    told = {name, f"@{name.rpartition('@')[2]}", "*"}
    for role in (Role.RESPONDER, Role.VIEWER):
        if told & {entry.casefold() for entry in roles.get(role, ())}:
            return role
    return Role.NOBODY


@cache
def read_roles(path: Path) -> Mapping[str, Sequence[str]]:
    """The lists of a file. Raises `KvwitnessError` that says what is wrong with it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KvwitnessError(
            f"{path} cannot be read as TOML: {error}.", "See docs/dashboard.md for its form."
        ) from error
    roles = document.get("roles")
    known = {Role.RESPONDER, Role.VIEWER}
    if not isinstance(roles, dict) or not roles.keys() <= known or "auth" not in document:
        raise KvwitnessError(
            f"{path} needs a table [auth] and a table [roles] with the keys {' and '.join(sorted(known))}.",
            "See docs/dashboard.md for its form.",
        )
    wrong = [key for key, names in roles.items() if not isinstance(names, list) or not all(map(_named, names))]
    if wrong:
        raise KvwitnessError(
            f"{path}: roles.{wrong[0]} is no list of addresses.", 'Write: viewer = ["ada@example.com", "@example.com"]'
        )
    return roles


def _named(entry: object) -> bool:
    return isinstance(entry, str) and bool(entry.strip())


def login() -> str | None:
    """The address of whoever is logged in, if their provider says that it is verified; None for nobody."""
    if not getattr(st.user, "is_logged_in", False) or st.user.get("email_verified") is False:
        return None
    found = st.user.get("email")
    return str(found) if found else None


def role() -> Role:
    """Of whoever looks."""
    path = Settings.from_environment().roles
    return Role.RESPONDER if path is None else role_of(login(), read_roles(path))


def names_hidden() -> bool:
    """Whether tenants stand under pseudonyms."""
    return Settings.from_environment().pseudonyms or role() is not Role.RESPONDER


def may_write() -> bool:
    """Whether notes may be written."""
    return role() is Role.RESPONDER


def may_ask() -> bool:
    """Whether questions in SQL may be asked: their answers hold names wherever the record does."""
    return role() is Role.RESPONDER and not names_hidden()
