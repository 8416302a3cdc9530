"""Databases of both kinds, and what a leader needs."""

from __future__ import annotations

from tests.databases import database, fresh_database, postgres

__all__ = ["database", "fresh_database", "postgres"]
