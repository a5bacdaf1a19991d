"""The ServerApp and the ClientApp themselves, with a grid that carries messages within this process."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

import pytest

from posterity.flower.agreement import SampleSpec
from posterity.flower.codec import encode
from posterity.flower.experiment import open_server
from posterity.flower.question import ClientQuestion
from posterity.flower.sent import SENT, read_sent
from posterity.runs.files import read_lines

from .in_process import assert_same_end, configuration, simulate

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'posterity[flower]')")

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from posterity.flower import app as adapter

RUN = {"dataset": "digits", "clients": 3, "rounds": 2, "subset": "4%", "partition": "dirichlet:0.5:2", "lr": 0.05,
       "batch_size": 10, "evaluate_every": 2, "engine": "oracle", "min_count": 1, "set.model.hidden": "8"}  # fmt: skip

REGISTER = encode({}, facts={"ask": "register"})


class FakeGrid:
    """Nodes 900, 893 and 886 are clients 0, 1 and 2; replies wait until they are asked for."""

    def __init__(self, run, records):
        self.run_config, self.records, self.replies, self.types = run, records, {}, []

    def get_node_ids(self):
        return [886, 893, 900]

    def push_messages(self, messages):
        for message in messages:
            number = f"m{len(self.types)}"
            message.metadata._message_id = number
            self.types.append(message.metadata.message_type)
            node = message.metadata.dst_node_id
            config = {"client": f"client {(900 - node) // 7}", "records": str(self.records)}
            context = Context(
                run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=self.run_config
            )
            self.replies[number] = adapter.client_app(message, context)
            yield number

    def pull_messages(self, numbers):
        return [self.replies.pop(number) for number in numbers if number in self.replies]


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Messages want to know in which task they are made."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def serve(run, tmp_path):
    grid = FakeGrid(run, tmp_path / "sites")
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run)
    adapter.server_app(grid, context)
    return grid


@pytest.mark.parametrize("spec", ["pfedvmp", "fedavg+metavd"])
def test_the_apps_end_where_the_simulator_ends(spec, tmp_path, capsys):
    run = {**RUN, "method": spec, "experiment": "test", "out": str(tmp_path / "server")}
    grid = serve(run, tmp_path)
    told = adapter.read_settings(run)
    assert told.config == configuration(spec)
    assert grid.types == ["query"] * 3 + ["train"] * 9  # two rounds, and scores of the last
    server = open_server(told.config, adapter.GridExchange(grid), told.out, 3)
    assert_same_end(server, tmp_path, simulate(told.config))
    lines = read_lines(told.out / "metrics.jsonl")
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 3]
    assert len([line for line in lines if line["kind"] == "score"]) == 9
    assert "round 2: 3 of 3 clients" in capsys.readouterr().out


def test_a_site_that_cannot_answer_says_why(tmp_path, capsys):
    run = {**RUN, "method": "fedper", "experiment": "test", "out": str(tmp_path / "server")}
    grid = FakeGrid(run, tmp_path / "sites")
    ((node, reply),) = adapter.GridExchange(grid, 5).ask([(1, REGISTER)])
    assert node == 1  # that would be client 128
    assert (
        reply == "the site says: its data cannot be read as the configuration says; the site's own log says what it is"
    )
    assert "there is no client 'client 128' in this federation of 3" in capsys.readouterr().err


def site_reply(question, run, path, records):
    """What a site with a file of its own sends, all of it."""
    message = Message(content=adapter._packed(question), message_type="train", dst_node_id=1)
    node = {"client": "north", "data": str(path), "records": str(records)}
    return adapter.reply_to(message, Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run))


CELL = "Anna Mueller 1961-03-02 HIV+"
TABLES = {
    "a cell": f"age,ill\n50,yes\n{CELL},no\n",
    "one class": "age,ill\n" + f"50,{CELL}\n" * 9,
    "no header": f"50,{CELL}\n51,no\n",
    "a name of a column": f"age,{CELL},ill\n" + "50,1,yes\n60,2,no\n" * 9,
    "a class": "age,ill\n" + f"50,yes\n60,no\n70,{CELL}\n" * 9,
}


@pytest.mark.parametrize("case", TABLES)
def test_no_cell_leaves_a_site_that_refuses(case, tmp_path, capsys):
    """Neither when it registers nor in a later round; the whole sentence is in its own log, what left in its list."""
    run = {"method": "fedavg", "target": "ill", "sites": 1, "experiment": "test", "out": str(tmp_path / "server")}
    path, records = tmp_path / "north.csv", tmp_path / "records"
    path.write_text(TABLES[case])
    samples = SampleSpec((1,), "classification", ("no", "yes"), False, ("age",))
    federation = {"clients": 1, "samples": 9, "public": 0}
    asked = ClientQuestion("visit", 4, 0, False, True, False, 0, (), samples, federation)
    reply = site_reply(encode({}, facts=asked.facts()), run, path, records)
    told = reply.content[adapter.WRONG]["text"]
    sent = recorddict_to_proto(reply.content).SerializeToString()
    assert told.encode() in sent
    assert b"Anna" not in sent
    assert b"1961" not in sent
    assert told.endswith("the site's own log says what it is")
    assert "Anna" in capsys.readouterr().err
    (line,) = read_sent(records / "test" / "north" / SENT)
    assert (line["round"], line["leaf"], line["bytes"]) == (4, "refusal", len(told))


def test_what_the_server_itself_asked_is_told_in_full(tmp_path):
    run = {"method": "fedavg", "sites": 1, "experiment": "test", "out": str(tmp_path / "server")}
    for question, changes, text in (
        (encode({}, facts={"ask": "forget"}), {"dataset": "digits", "clients": 3}, "the server asks for 'forget'"),
        (REGISTER, {"lr": -1.0, "rounds": 0}, "rounds must be at least 1"),
    ):
        message = Message(content=adapter._packed(question), message_type="train", dst_node_id=1)
        context = Context(run_id=1, node_id=1, node_config={"client": "0"}, state=RecordDict(),
                          run_config={**run, **changes})  # fmt: skip
        assert text in adapter.reply_to(message, context).content[adapter.WRONG]["text"]


def test_a_refusal_that_cannot_be_written_down_is_not_told(tmp_path):
    (tmp_path / "records").write_text("no folder")
    path = tmp_path / "north.csv"
    path.write_text(TABLES["a cell"])
    reply = site_reply(REGISTER, {"method": "fedavg", "target": "ill", "sites": 1}, path, tmp_path / "records")
    assert "could not be written down at the site" in reply.content[adapter.WRONG]["text"]


def test_what_a_site_says_is_one_line_of_a_log_that_can_be_printed(capsys):
    """Half a character cannot be written, and a line of its own might be taken for the server's."""
    for text in ("half \ud800", "a line\nround 9: all is well", "\x1b[2J"):
        adapter._show({"kind": "lost", "client": "north", "reason": text})
        adapter._show({"kind": "round", "round": 1, "accepted": 0, "cohort": 1, "loss": None, "bytes_up": 0,
                       "refused": [{"client": "north", "reason": text}]})  # fmt: skip
    told = capsys.readouterr().out
    told.encode()
    assert len(told.splitlines()) == 3 * 3
    assert "\x1b" not in told


def test_an_error_that_ends_the_run_is_a_sentence_in_flowers_log(tmp_path):
    """Flower logs what the app raises with its traceback; other errors keep theirs."""
    told, logger = io.StringIO(), logging.getLogger("flwr")
    logger.addHandler(handler := logging.StreamHandler(told))
    try:
        with pytest.raises(ValueError, match="minimum = 'half'") as stopped:
            serve({**RUN, "method": "fedavg", "minimum": "half", "out": str(tmp_path)}, tmp_path)
        logger.error("%s raised an exception", "ServerApp", exc_info=stopped.value)
        assert told.getvalue().startswith("The run has stopped: minimum = 'half' was given: give a number of clients")
        assert told.getvalue().count("\n") == 1
        logger.error("something else", exc_info=ValueError("of another kind"))
        assert "of another kind" in told.getvalue().split("something else")[1]
    finally:
        logger.removeHandler(handler)
        logger.filters.clear()


def test_what_a_round_notes_is_shown(capsys):
    adapter._show({"kind": "round", "round": 2, "accepted": 2, "cohort": 2, "loss": 0.5, "bytes_up": 8, "refused": [],
                   "notes": ["2 clients are left"]})  # fmt: skip
    assert capsys.readouterr().out == "round 2: 2 of 2 clients, loss 0.5, 8 bytes up\n  2 clients are left\n"


def test_no_reply_is_named():
    grid = SimpleNamespace(push_messages=lambda messages: ["m"], pull_messages=lambda numbers: [])
    found = list(adapter.GridExchange(grid, 0.3).ask([(7, REGISTER)]))
    assert found == [(7, "no reply within 0 seconds")]


def test_replies_are_fetched_in_the_order_of_the_questions(monkeypatch):
    """Whoever answers first: sums are the same to the last bit, and one reply is held at a time."""
    monkeypatch.setattr(adapter, "PAUSE", 0.01)
    numbers, looks, held = iter(["m0", "m1", "m2"]), [], []
    there = {"m2": 0, "m1": 3, "m0": 6}  # after how many looks a reply is there: the last question is answered first

    def pull(asked):
        looks.append(asked)
        return [answered(number) for number in asked if len(looks) > there[number]]

    def answered(number):
        held.append(number)
        return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=number), has_error=lambda: False,
                               content={adapter.WRONG: {"text": number}})  # fmt: skip

    grid = SimpleNamespace(push_messages=lambda messages: [next(numbers)], pull_messages=pull)
    found = []
    for node, reply in adapter.GridExchange(grid, 5).ask([(node, REGISTER) for node in (7, 8, 9)]):
        found.append((node, reply.rpartition(" ")[2]))
        assert len(held) == len(found)
    assert found == [(7, "m0"), (8, "m1"), (9, "m2")]


def test_a_late_reply_is_not_taken_for_the_next_one():
    """The reply to the first question comes when the second one is waited for."""
    late, numbers = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="m0")), iter(["m0", "m1"])
    grid = SimpleNamespace(
        push_messages=lambda messages: [next(numbers)],
        pull_messages=lambda asked: [late] if asked == ["m1"] else [],
    )
    exchange = adapter.GridExchange(grid, 0.3)
    for _ in range(2):
        assert list(exchange.ask([(7, REGISTER)])) == [(7, "no reply within 0 seconds")]


def test_rules_and_who_leaves_are_read():
    told = adapter.read_settings({**RUN, "minimum": "2", "tries": 5, "leave": "client 1, north"})
    assert (told.rules.minimum, told.rules.tries, told.leave) == ("2", 5, ("client 1", "north"))
    assert adapter.read_settings(RUN).leave == ()


@pytest.mark.parametrize(("name", "given", "least"), [("sites", "many", 0), ("sites", -2, 0), ("sites", 2.5, 0),
    ("deadline", -5, 1), ("deadline", "nan", 1), ("tries", "twice", 1), ("tries", 0, 1)])  # fmt: skip
def test_numbers_that_are_none_are_named(name, given, least):
    with pytest.raises(ValueError, match=f"{name} = {given!r} was given in the run config: give .*, {least} or more"):
        adapter.read_settings({**RUN, name: given})


@pytest.mark.parametrize(("found", "fits"), [("1.39.9", False), ("1.40.0", True), ("1.42.3", True), ("1.43.0", False)])
def test_another_flower_is_refused(found, fits, monkeypatch):
    monkeypatch.setattr(adapter, "version", lambda name: found)
    if fits:
        adapter.check_flower()
        return
    with pytest.raises(ImportError, match=rf"Flower {found} is installed; this posterity knows 1\.40 to 1\.42"):
        adapter.check_flower()


def test_sites_must_be_counted():
    with pytest.raises(ValueError, match="does not say how many sites there are"):
        adapter.read_settings({"method": "fedavg"})


@pytest.mark.parametrize(
    ("given", "least"),
    [({"method": "pfedvmp"}, 5), ({"method": "pfedvmp@paper"}, 1), ({"method": "pfedvmp@paper", "min_count": 7}, 7)],
)
def test_little_leaves_a_site_unless_a_paper_or_the_configuration_wants_it(given, least):
    assert adapter.read_settings({**given, "sites": 2}).config.least == least
