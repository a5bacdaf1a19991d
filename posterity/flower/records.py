"""A client's record on its own disk: it never leaves the site, and survives whatever restarts.

    FOLDER / experiment / client / round-00000007.safetensors     the record after round 7

Two versions are kept. A site that has answered does not know whether its message was counted; the next offer says which
round of its was the last that was. The record of that round is then the client's, whatever was computed since: a reply
that was lost, refused or rolled back has left no trace, and a round that is asked for again is the same round. A third
version stays where the last offer that was scored needs it: the site predicts with both.

A record says which data it was trained on, by a fingerprint of the site's file. With another file, rows that were
trained on might become test rows, so the site does not go on with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from posterity.core.protocol import Personal
from posterity.flower.sent import SiteError
from posterity.runs.folder import read_saved, restore, save_checkpoint

TOP = "record"
ADVICE = "put the old file back, or let the new one take part as another client"
CHANGED = f"its data are not those that it was trained on before: {ADVICE}"


@dataclass(frozen=True)
class RecordFiles:
    """The versions of one client's record in one experiment."""

    folder: Path
    experiment: str
    client: str
    fingerprint: str
    data: str = ""  # fingerprint of the file that the client trains on; none: it is not looked at

    @property
    def place(self) -> Path:
        return place_of(self.folder, self.experiment, self.client)

    def path(self, round: int) -> Path:
        return self.place / f"round-{round:08d}.safetensors"

    def read(self, like: Personal, round: int) -> Personal:
        path = self.path(round)
        if not path.exists():
            raise ValueError(f"{self.client!r} has no record of round {round} in {self.place}: put the folder back")
        leaves, facts = read_saved(path)
        if facts.get("fingerprint") != self.fingerprint:
            raise ValueError(f"{path} is of another experiment than this {self.experiment!r}: give it another name")
        if self.data and facts["data"] != self.data:
            changed = f"client {self.client!r}: its data are not those that {path} was trained on: {ADVICE}"
            raise SiteError(changed, CHANGED)
        return restore(like, leaves, TOP)

    def write(self, record: Personal, round: int, needed: Iterable[int]) -> None:
        """The record after a round, beside those of rounds that are still `needed`; the others go."""
        self.place.mkdir(parents=True, exist_ok=True)
        facts = {"round": round, "fingerprint": self.fingerprint, "data": self.data}
        save_checkpoint(self.place, {TOP: record}, facts, self.path(round).name)
        kept = {self.path(each) for each in (round, *needed)}
        for path in self.place.glob("round-*.safetensors"):
            if path not in kept:
                path.unlink()


def place_of(folder: Path, *names: str) -> Path:
    """Where a client's record is, and what was sent; each name is one folder, whatever it was."""
    return folder.joinpath(*(quote(name, safe=" ").replace(".", "%2E") or "%" for name in names))
