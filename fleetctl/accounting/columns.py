"""The kinds of columns that our tables have."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Text


def row_id() -> Column[int]:
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False)


def number(name: str, *, null: bool = True) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def numbers(*names: str, null: bool = True) -> list[Column[int]]:
    return [number(name, null=null) for name in names]


def texts(*names: str) -> list[Column[str]]:
    return [text(name) for name in names]
