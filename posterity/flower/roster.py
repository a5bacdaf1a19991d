"""Who is who: clients by the names that they register, whatever number their node has today.

Numbers are given before the first round, in the order of names, and never change: what a server sends to one client
alone, and what a client draws, depend on them. Who comes later gets the next number, and who leaves keeps its own. A
node that comes back under another number is asked who it is.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from posterity.data.checks import alike
from posterity.flower.agreement import MOST, SampleSpec
from posterity.flower.codec import CodecError, encode, read_facts

PAUSE = 1.0  # seconds between two looks at who is there
LONGEST = 200  # characters of a name


class Exchange(Protocol):
    """What carries questions to nodes and replies back."""

    def nodes(self) -> list[int]: ...

    def ask(self, questions: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes | str]]:
        """Replies by node, in the order of the questions; text: why there is none."""
        ...


@dataclass(frozen=True)
class Registered:
    name: str
    newcomer: bool
    train: int
    kind: SampleSpec


@dataclass
class Roster:
    clients: dict[str, Registered] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    node: dict[str, int] = field(default_factory=dict)  # where each client was last met
    left: set[int] = field(default_factory=set)  # nodes whose client has another one by now
    remarks: list[str] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)  # who left for good; why their factor stays
    said: set[str] = field(default_factory=set)  # remarks that stand in the run's lines
    shown: set[str] = field(default_factory=set)  # remarks that were seen while sites were waited for

    def look(self, exchange: Exchange) -> None:
        """Ask nodes that are not known yet who they are."""
        here = exchange.nodes()
        self.node = {name: node for name, node in self.node.items() if node in here}
        unknown = [node for node in here if node not in self.node.values() and node not in self.left]
        question = encode({}, facts={"ask": "register"})
        for node, reply in exchange.ask((node, question) for node in unknown):
            try:
                client = _registered(reply)
            except CodecError as error:
                self.remarks.append(f"node {node} was not understood when it registered: {error}")
                continue
            name = client.name
            if name in self.node:  # a killed node is listed for a while
                self.remarks.append(f"two nodes say that they are {name!r}: the one that said it last is taken")
                self.left.add(self.node[name])
            self.node[name] = node
            if name not in self.numbers:  # what was agreed before the first round stays
                self.clients[name] = client

    def wait(
        self, exchange: Exchange, sites: int, seconds: float, lacking: Sequence[str] = (),
        show: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        """Look until so many clients are there; of a run that has ended, for a while, one of those that it lacks.

        Why a site is not taken is shown at once: whoever waits may mend it.
        """
        last = time.monotonic() + seconds
        self.look(exchange)
        while not any(name in self.node for name in lacking) if lacking else len(self.node) < sites:
            for remark in dict.fromkeys(self.remarks):
                if remark not in self.shown:
                    show(remark)
            self.shown |= set(self.remarks)
            if time.monotonic() > last:
                if lacking:
                    return
                heard = " ".join(dict.fromkeys(self.remarks))
                raise ValueError(f"{len(self.node)} of {sites} sites registered within {seconds:.0f} seconds: start "
                                 f"the others, or give a smaller 'sites'. {heard}".strip())  # fmt: skip
            time.sleep(PAUSE)
            self.look(exchange)

    def number(self) -> None:
        if not self.numbers:
            ordered = sorted(self.clients.values(), key=lambda c: (c.newcomer, _order(c.name)))
            self.numbers = {client.name: place for place, client in enumerate(ordered)}

    def admit(self, kind: SampleSpec, grows: bool) -> None:
        """Give numbers to clients that came late; where the method cannot grow, as newcomers."""
        late = [client for name, client in self.clients.items() if name not in self.numbers]
        for client in sorted(late, key=lambda client: _order(client.name)):
            if not client.kind.fits(kind):
                del self.clients[client.name]
                self.remarks.append(f"{client.name!r} came late and cannot take part: its samples are of "
                                    f"{client.kind.facts()}, those of the experiment of {kind.facts()}")  # fmt: skip
                continue
            trains = grows and not client.newcomer
            does = "it takes part from now on" if trains else "it is scored and adapts, as a newcomer"
            self.clients[client.name] = replace(client, newcomer=not trains)
            self.numbers[client.name] = max(self.numbers.values(), default=-1) + 1
            self.remarks.append(f"{client.name!r} came late: {does}")

    def news(self) -> list[str]:
        fresh = [remark for remark in dict.fromkeys(self.remarks) if remark not in self.said]
        self.said |= set(fresh)
        return fresh

    @property
    def members(self) -> list[Registered]:
        return [client for client in self.known if not client.newcomer]

    @property
    def able(self) -> list[Registered]:
        return [client for client in self.members if client.train > 0]

    @property
    def known(self) -> list[Registered]:
        """Clients that may be asked, by number: they have one and have not left."""
        here = [client for name, client in self.clients.items() if name in self.numbers and name not in self.gone]
        return sorted(here, key=lambda client: self.numbers[client.name])

    def groups(self) -> dict[str, list[Registered]]:
        """Everybody who ever had a number, by number: those that train, and newcomers."""
        named = sorted(self.numbers, key=self.numbers.__getitem__)
        every = [self.clients[name] for name in named if name in self.clients]
        return {"members": [client for client in every if not client.newcomer],
                "newcomers": [client for client in every if client.newcomer]}  # fmt: skip

    def kind(self) -> SampleSpec:
        """What samples are like, if all say the same; classes that some lack are put together."""
        kinds = {client.name: client.kind for client in self.known}
        first, *others = kinds.values()
        for name, kind in kinds.items():
            first.order_of(kind.columns, f"client {name!r}")
            if replace(kind, classes=first.classes, columns=first.columns) != first:
                raise ValueError(f"{name!r} has {kind.facts()}, others {first.facts()}: all must have the same columns")
        if all(kind.classes == first.classes for kind in others):
            return first
        every = {label for kind in kinds.values() for label in kind.classes}
        return replace(first, classes=tuple(sorted(every, key=_order)))


def _registered(reply: bytes | str) -> Registered:
    if isinstance(reply, str):
        raise CodecError(reply)
    facts = read_facts(reply)
    for name, of in (("client", str), ("newcomer", bool), ("train", int)):
        if type(facts.get(name)) is not of:
            raise CodecError(f"its {name!r} is {facts.get(name)!r}; expected a {of.__name__}")
    if not (0 <= facts["train"] < MOST and 0 < len(facts["client"]) <= LONGEST):
        raise CodecError(f"it says that {facts['client']!r:.80} has {facts['train']!r:.20} training samples")
    return Registered(facts["client"], facts["newcomer"], facts["train"], SampleSpec.read(facts))


def _order(name: str) -> list[Any]:
    """Names in the order that people expect: client 2 before client 10."""
    return [(0, int(text), "") if text.isdecimal() else (1, 0, text) for text in re.split(r"(\d+)", name)]


def label_remarks(clients: Sequence[Registered], classes: tuple[str, ...]) -> list[str]:
    """What to say about labels that sites write in different ways: nobody sees two sites' files side by side.

    Classes that were put together of what clients named may differ in capitals alone, or some clients have no class in
    common with the others: the same classes under other names?
    """
    found = alike(classes, "classes")
    linked: set[str] = set()
    for client in [*clients] * len(clients):  # one that comes later may join what two before it have
        if not linked or linked & {*client.kind.classes}:
            linked |= {*client.kind.classes}
    for client in clients:
        if client.kind.classes and not linked & {*client.kind.classes}:
            found.append(f"{client.name!r} has the classes {', '.join(client.kind.classes)}, which nobody has who has "
                         f"{', '.join(sorted(linked))}: write the labels alike if they mean the same, for all are "
                         "classes of the network")  # fmt: skip
    return found
