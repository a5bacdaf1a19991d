"""The ServerApp and the ClientApp: the only module that knows Flower (Message API).

An app's `pyproject.toml` names `posterity.flower.app:server_app` and `:client_app` through two modules of one line
(`posterity flower new DIR` writes them). Questions and replies are one array of bytes each (`flower/codec.py`), which
Flower carries and does not look into.

    run config (everybody)   the keys of `posterity run`; `experiment`, `out`, `sites`, `deadline`, `minimum`, `tries`,
                             `leave`
    node config (a site)     `client`: its name; `data`: its file; `records`: the folder of its record
"""

import logging
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from posterity.flower.codec import CodecError, read_facts
from posterity.flower.new_app import WANTED
from posterity.flower.records import place_of
from posterity.flower.sent import refuse, refusing
from posterity.flower.settings import DEADLINE, RunSettings, read_settings
from posterity.settings.text import plain


def check_flower() -> None:
    """Refuse a Flower whose interfaces are not those that this module was tested with."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ImportError(f"Flower is not installed; give pip install 'posterity[flower]' (or '{WANTED}')") from None
    if found.split(".")[:2] not in (["1", "40"], ["1", "41"], ["1", "42"]):
        raise ImportError(f"Flower {found} is installed; this posterity knows 1.40 to 1.42: pip install '{WANTED}'")


check_flower()

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

BYTES, WRONG = "posterity", "error"  # names of records in a message
PAUSE = 0.2  # seconds between two looks for replies


# --- the server
@dataclass(frozen=True)
class GridExchange:
    grid: Grid
    deadline: float = DEADLINE

    def nodes(self) -> list[int]:
        return sorted(self.grid.get_node_ids())

    def ask(self, questions: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes | str]]:
        """One message is made, pushed and let go after the other; replies are fetched one by one in the same order.

        They wait in the SuperLink until then. So the server holds one at a time, and sums are the same to the last bit
        whoever answers first.
        """
        waiting: dict[str, int] = {}
        for node, data in questions:
            kind = MessageType.QUERY if read_facts(data).get("ask") == "register" else MessageType.TRAIN
            message = Message(content=_packed(data), message_type=kind, dst_node_id=node)
            waiting |= dict.fromkeys(self.grid.push_messages([message]), node)
        last = time.monotonic() + self.deadline
        for number, node in waiting.items():
            reply = self._fetch(number)
            while reply is None and time.monotonic() < last:
                time.sleep(PAUSE)
                reply = self._fetch(number)
            yield node, f"no reply within {self.deadline:.0f} seconds" if reply is None else _reply(reply)

    def _fetch(self, number: str) -> Message | None:
        found = [each for each in self.grid.pull_messages([number]) if each.metadata.reply_to_message_id == number]
        return found[0] if found else None


def serve(grid: Grid, context: Context) -> None:
    """The server's part of a run; what its user can mend is told in a sentence."""
    from posterity.flower.experiment import run_experiment
    from posterity.flower.samples import read_public

    try:
        run = read_settings(context.run_config)
        exchange = GridExchange(grid, run.deadline)
        run_experiment(run.config, exchange, run.out, run.sites, _show, read_public(run.config), rules=run.rules,
                       leave=run.leave)  # fmt: skip
    except ValueError as error:
        logging.getLogger("flwr").addFilter(partial(_without_traceback, error))  # Flower logs what is raised
        raise


def _without_traceback(error: ValueError, record: logging.LogRecord) -> bool:
    """Of an error that ends the run, Flower's log has its sentence alone."""
    if record.exc_info and record.exc_info[1] is error:
        record.msg, record.args, record.exc_info = "The run has stopped: %s", (plain(str(error)),), None
    return True


def _show(line: dict[str, Any]) -> None:
    """A line for whoever streams the run's log, harmless whatever sites said."""
    if line["kind"] == "round":
        refused = "".join(f"\n  left out: {plain(each['client'])}: {plain(each['reason'])}" for each in line["refused"])
        refused += "".join(f"\n  {plain(note)}" for note in line.get("notes", ()))
        print(f"round {line['round']}: {line['accepted']} of {line['cohort']} clients, loss {line['loss']}, "
              f"{line['bytes_up']} bytes up{refused}", flush=True)  # fmt: skip
    elif line["kind"] in ("note", "lost"):
        print(plain(line.get("text") or f"{line['client']}: {line['reason']}"), flush=True)


# --- a site
def reply_to(message: Message, context: Context) -> Message:
    """A site's part: it answers, or says why not; what may know its data stays in its own log."""
    try:
        return Message(content=_packed(_answer(message, context)), reply_to=message)
    except Exception as error:
        traceback.print_exc()  # the site's own log
        text = refuse(error, _place(context), _round(message))
        return Message(content=RecordDict({WRONG: ConfigRecord({"text": text})}), reply_to=message)


def _answer(message: Message, context: Context) -> bytes:
    from posterity.flower.samples import read_samples
    from posterity.flower.site import ClientSite, answer

    with refusing():
        run, name, folder = _who(context)
    path = context.node_config.get("data")
    with refusing("its data cannot be read as the configuration says"):
        samples = read_samples(run.config, name, None if path is None else Path(str(path)))
    return answer(ClientSite(run.config, run.experiment, samples, folder), _unpacked(message))


def _who(context: Context) -> tuple[RunSettings, str, Path]:
    run, node = read_settings(context.run_config), context.node_config
    name = node.get("client", node.get("partition-id"))  # Flower's simulation gives every node a number
    if name is None:
        raise ValueError("""this node does not say whose it is; start it with --node-config 'client="NAME" …'""")
    return run, str(name), Path(str(node.get("records", run.out / "records")))


def _place(context: Context) -> Path | None:
    try:
        run, name, folder = _who(context)
    except ValueError:
        return None
    return place_of(folder, run.experiment, name)


def _round(message: Message) -> int:
    with suppress(CodecError):
        round = read_facts(_unpacked(message)).get("round")
        return round if type(round) is int else 0
    return 0


# --- bytes in Flower's records
def _packed(data: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(data),), stype="posterity", data=data)
    return RecordDict({BYTES: ArrayRecord({"bytes": array})})


def _unpacked(message: Message) -> bytes:
    try:
        return bytes(message.content.array_records[BYTES]["bytes"].data)
    except (KeyError, TypeError, AttributeError):
        raise CodecError("the message holds no bytes of posterity's") from None


def _reply(reply: Message) -> bytes | str:
    if reply.has_error():
        return f"the node failed (Flower's code {reply.error.code}: {reply.error.reason!s:.300})"
    if WRONG in reply.content:
        return f"the site says: {reply.content[WRONG].get('text', '')!s:.1000}"
    try:
        return _unpacked(reply)
    except CodecError as error:
        return str(error)


server_app = ServerApp()
server_app.main()(serve)
client_app = ClientApp()
client_app.query()(reply_to)
client_app.train()(reply_to)
