"""Cannot serve a newcomer: it looks up a row for a client that the server has never met."""

from __future__ import annotations

from dataclasses import dataclass

from .absent import Right as Tabled

LAW = "newcomers"


@dataclass(frozen=True)
class Wrong(Tabled):
    def offer(self, state, client):
        return state, state.biases.index_select(0, client[None])[0]


@dataclass(frozen=True)
class Right(Tabled):
    def offer(self, state, client):
        own = state.biases.mean(0) if client is None else state.biases.index_select(0, client[None])[0]
        return state, own
