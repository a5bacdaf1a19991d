"""The ClientApp of a hostile site: posterity's, but for one reply of one client, which is forged, lost or sent twice.

It is copied into an app's folder with `forged.py`; no part of posterity can be told to be hostile. Which fault it plays
is the name of the experiment in the run config, whose it is the node config's `client`.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supernode.runtime import run_clientapp

from posterity.flower import app as adapter
from posterity.flower.codec import read_facts

from .forged import AT, FORGED, VICTIM, Seen, is_forged

EARLIER = "earlier"
PAUSES = {"duplicated": 0.0, "again": 3.0}  # seconds until a reply is sent for the second time


def answer(message: Message, context: Context) -> Message:
    """What posterity answers, or what the fault makes of it."""
    fault, client = str(context.run_config["experiment"]), str(context.node_config["client"])
    reply, question = adapter.reply_to(message, context), adapter._unpacked(message)
    asked, honest = read_facts(question), adapter._unpacked(reply)
    if client == f"client {VICTIM}" and asked.get("round") == AT - 1:
        context.state[EARLIER] = ConfigRecord({"bytes": honest})  # Flower keeps it until the run ends
    if not is_forged(client, asked):
        return reply
    if fault == "foreign":
        return Message(content=RecordDict({"other": ConfigRecord({"text": "good morning"})}), reply_to=message)
    if fault == "exception":
        raise RuntimeError("a ClientApp that fails")
    if fault in PAUSES:
        send_twice(message, PAUSES[fault])
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault not in FORGED:
        return reply
    sent = FORGED[fault].forge(Seen(question, honest, context.state[EARLIER]["bytes"]))
    return Message(content=adapter._packed(sent), reply_to=message)


def send_twice(message: Message, pause: float) -> None:
    """What Flower sends when this app has answered it sends again after a pause, as another message."""
    push = run_clientapp.push_message

    def pushed(client: object, reply: Message, context: Context) -> None:
        second = Message(content=reply.content, reply_to=message)
        with ThreadPoolExecutor(2) as both:  # at once: the SuperNode looks for replies twice a second
            both.submit(push, client, reply, context)
            time.sleep(pause)
            both.submit(push, client, second, context)

    run_clientapp.push_message = pushed


app = ClientApp()
app.query()(answer)
app.train()(answer)
