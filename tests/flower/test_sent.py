"""What leaves a site: nothing that is made of too few samples, and every leaf of it is written down."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from posterity import methods
from posterity.cli.app import app
from posterity.core.protocol import Facts
from posterity.core.random import make_key
from posterity.core.tree import tree_leaves
from posterity.core.wrapper import without_rare
from posterity.engine import client, keys
from posterity.experiment.setup import DTYPES, set_up
from posterity.flower.codec import encode, read_arrays, read_facts
from posterity.flower.experiment import run_experiment
from posterity.flower.samples import read_samples, samples_of
from posterity.flower.scores import encode_loss
from posterity.flower.sent import SENT, read_sent, summarise_sent, write_sent
from posterity.flower.server import Server
from posterity.flower.site import ClientSite, answer
from posterity.runs.files import read_lines

from . import in_process
from .in_process import InProcess, assert_same_end, configuration, deploy, federation_of, simulate, sites
from .test_scores import scores_of, simulated

REGISTER = encode({}, facts={"ask": "register"})
LEAST = 5


def sent_by(folder, number):
    return read_lines(folder / "sites" / "test" / f"client {number}" / SENT)


@pytest.mark.parametrize(
    "spec", ["pfedvmp", "fedproto", "fedpac", pytest.param("pfedvmp@paper", marks=pytest.mark.everything)]
)
def test_it_ends_where_the_simulator_ends_and_names_no_small_class(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "due", lambda self, round: False)
    config = configuration(spec, min_count=LEAST)
    federation = federation_of(config)
    sizes = federation.histogram(federation.train)
    assert bool(((sizes > 0) & (sizes < LEAST)).any())  # or the test says nothing
    expected = simulate(config)
    assert_same_end(deploy(config, tmp_path), tmp_path, expected)
    assert any((a != b).any() for a, b in zip(*(tree_leaves(end[0]) for end in (expected, simulate(
        replace(config, min_count=1)))), strict=True))  # fmt: skip
    parts = {part for parts in methods.build(spec).class_statistics.values() for part in parts}
    for number in range(3):
        some = [n for n in sizes[number].tolist() if n >= LEAST]
        lines = [line for line in sent_by(tmp_path, number) if line["round"] and line["leaf"].split("/")[0] in parts]
        assert lines
        assert {line["count"] for line in lines} == {min(some, default=0)}


def test_every_leaf_is_written_down_before_it_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "due", lambda self, round: False)
    config = configuration("fedproto", rounds=1)
    left: list = []

    class Watching(InProcess):
        def ask(self, questions):
            for node, reply in super().ask(questions):
                left.append(reply)
                yield node, reply

    monkeypatch.setattr(in_process, "InProcess", Watching)
    deploy(config, tmp_path)
    written = [line for number in range(3) for line in sent_by(tmp_path, number)]
    found = [(name, list(array.shape)) for data in left for name, array in read_arrays(data).items()]
    assert sorted(found) == sorted((each["leaf"], each["shape"]) for each in written if "/" in each["leaf"])
    one = next(line for line in written if line["leaf"] == "prototypes/value")
    leaves = [read_arrays(data).get("prototypes/value") for data in left]
    sums = {hashlib.sha256(leaf.numpy().tobytes()).hexdigest()[:16] for leaf in leaves if leaf is not None}
    assert one["checksum"] in sums
    train = federation_of(config).train.counts.tolist()
    assert {line["count"] for line in written if line["leaf"] == "loss"} == set(train)


@pytest.mark.parametrize("least", [1, 10_000])
def test_the_loss_of_few_rows_stays_at_home(least, tmp_path):
    replies: list = []

    class Listening(InProcess):
        def ask(self, questions):
            for node, reply in super().ask(questions):
                replies.append(read_facts(reply))
                yield node, reply

    config = configuration("fedavg", min_count=least, rounds=1, evaluate_every=2)
    run_experiment(config, Listening(sites(config, tmp_path)), tmp_path / "server", 3, lambda line: None, wait=0)
    told = [facts["loss"] for facts in replies if "loss" in facts]
    assert len(told) == 3
    assert all((loss is None) is (least > 1) for loss in told)


def test_an_infinite_loss_is_not_told():
    """JSON has no infinity, and the message is not to be lost for it."""
    assert encode_loss(torch.tensor([6.0, 3.0])) == [6.0, 3.0]
    assert encode_loss(torch.tensor([torch.inf, 3.0])) is None
    assert encode_loss(torch.tensor([torch.nan, 3.0])) is None
    assert encode_loss(None) is None


def test_scores_of_few_rows_stay_at_home_and_in_the_simulator_too(tmp_path):
    federation = federation_of(configuration("fedavg"))
    sizes = {part: getattr(federation, part).counts.tolist() for part in ("validation", "test")}
    least = max(sizes["test"])
    config = configuration("fedavg", min_count=least, rounds=1, evaluate_every=1)
    lines: list = []
    deploy(config, tmp_path, lines.append)
    expected, found = scores_of(simulated(config)), scores_of(lines)
    assert found.keys() == expected.keys()
    for key, line in found.items():
        assert line["clients"]["n"] == expected[key]["clients"]["n"]
        assert [value is None for value in line["clients"]["accuracy"]] == [n == 0 for n in line["clients"]["n"]]
    told = [n if n >= least else 0 for n in sizes["test"]]
    assert set(told) == {0, least}
    assert {tuple(line["clients"]["n"]) for key, line in found.items() if key[-1] == "test"} == {tuple(told)}


@pytest.mark.everything
def test_a_method_that_sends_class_statistics_declares_them():
    """What follows from sums or rows by class is withheld, or does not leave; by another way than the law's."""
    for spec in methods.available():
        config = configuration(spec, clients=3, rounds=1)
        federation = federation_of(config)
        sim = set_up(config, federation).sim
        site, offer = sim.site(0), sim.method.offer(sim.method.init(sim.model, sim.initial, facts_of(federation)),
                                                    torch.tensor(0))  # fmt: skip
        here = site.receive(*offer, None, 1)
        carry = client.work(site, site.passes(), client.start(site, client.at(here, keys.START)), here, keys.TRAIN)
        by_class = {n: v for n, v in carry.kept.items() if is_by_class(v, federation.classes)}
        rare = {n: without_rare(v, 10**6, federation.classes) for n, v in by_class.items()}
        before, after = (client.send(site, client.at(here, keys.MESSAGE), replace(carry, kept={**carry.kept, **change}))
                         for change in ({}, rare))  # fmt: skip
        changed = {part for part in before.message if any(
            not torch.equal(a, b) for a, b in zip(*map(tree_leaves, (before.message[part], after.message[part])),
                                                  strict=True))}  # fmt: skip
        declared = {part for parts in sim.method.class_statistics.values() for part in parts}
        assert changed == declared, spec


def is_by_class(gathered, classes):
    if isinstance(gathered, torch.Tensor):
        return gathered.shape == (classes,)
    if not isinstance(gathered, dict):
        return False
    return {"y", "mask"} <= set(gathered) or getattr(gathered.get("count"), "shape", ()) == (classes,)


def facts_of(federation):
    counts = federation.train.counts[: federation.members].tolist()
    public = 0 if federation.public is None else len(federation.public)
    return Facts(len(counts), sum(counts), federation.classes, make_key(0), public)


# --- files of a site's own ---------------------------------------------------------------------------------------
def csv_site(folder, name, labels, columns=("a", "b"), **changes):
    draw = torch.Generator().manual_seed(len(labels))
    rows = [",".join([label, *(f"{torch.randn((), generator=draw):.4f}" for _ in columns)]) for label in labels]
    path = folder / f"{name}.csv"
    path.write_text("\n".join([",".join(["label", *columns]), *rows]) + "\n")
    config = configuration("fedproto", dataset="unused", clients=3, subset=None, partition=None, target="label",
                           rounds=1, **{"min_count": LEAST, **changes})  # fmt: skip
    return ClientSite(config, "test", read_samples(config, name, path), folder / "sites")


def test_a_class_of_few_samples_is_not_named(tmp_path):
    site = csv_site(tmp_path, "north", ["well"] * 9 + ["sick"] * 6 + ["odd"] * 2)
    assert read_facts(answer(site, REGISTER))["classes"] == ["sick", "well"]
    (line,) = [line for line in read_lines(site.place / SENT) if line["leaf"] == "classes"]
    assert line["count"] == 6
    mine = site.samples.as_kind(replace(site.samples.kind, classes=("sick", "well")), LEAST)
    assert sum(len(rows) for rows in mine.rows.values()) == 15
    assert set(mine.y[torch.cat(list(mine.rows.values()))].tolist()) == {0, 1}
    others = site.samples.as_kind(replace(site.samples.kind, classes=("odd", "sick", "well")), LEAST)
    assert sum(len(rows) for rows in others.rows.values()) == 17


def test_a_dataset_that_everybody_knows_has_all_its_classes(tmp_path):
    config = configuration("fedavg", min_count=10**6)
    make = next(iter(sites(config, tmp_path).values()))
    assert len(read_facts(answer(make(), REGISTER))["classes"]) == 10
    assert not samples_of(federation_of(config), 0, DTYPES["float32"]).private


def test_columns_are_matched_by_name_and_a_missing_one_is_named(tmp_path):
    labels = ["well", "sick"] * 8
    one, two = csv_site(tmp_path, "a", labels), csv_site(tmp_path, "b", labels, ("b", "a"))
    turned = two.samples.as_kind(one.samples.kind)
    assert torch.equal(turned.x, two.samples.x[:, [1, 0]])
    assert two.samples.kind.columns == ("b", "a")
    for columns, text in ((("a", "c"), "client 'c' has no column 'b'"),
                          (("a", "b", "z"), "has a column that others lack, 'z'")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            csv_site(tmp_path, "c", labels, columns).samples.as_kind(one.samples.kind)


def test_what_left_is_summed_up(tmp_path):
    site = csv_site(tmp_path, "north", ["well"] * 9 + ["sick"] * 6)
    for _ in range(2):
        answer(site, REGISTER)
    found = {line["leaf"]: line for line in summarise_sent(read_sent(site.place / SENT))}
    assert found["train"]["times"] == 2
    assert found["train"]["count"] == len(site.samples.rows["train"])
    assert (found["client"]["count"], found["client"]["bytes"]) == (None, 2 * len('"north"'))
    lines = [
        {"round": r, "leaf": "w", "shape": [], "bytes": 4, "count": n, "checksum": ""}
        for r, n in enumerate((7, 0, 5, 9))
    ]
    assert summarise_sent(lines) == [{"leaf": "w", "times": 4, "rounds": [0, 3], "bytes": 16, "count": 5}]
    done = CliRunner().invoke(app, ["flower", "sent", str(site.place)])
    assert "What left this site" in done.output
    assert f"{sum(line['bytes'] for line in found.values())} bytes in all" in done.output


def test_what_left_is_a_page(tmp_path):
    """The same numbers, escaped: a leaf may be called anything."""
    site, page = csv_site(tmp_path, "north", ["well"] * 9 + ["sick"] * 6), tmp_path / "page.html"
    answer(site, REGISTER)
    strange = {"round": 1, "leaf": "<script>x</script>", "shape": [2, 3], "bytes": 24, "count": 7, "checksum": "ab"}
    write_sent(site.place, [strange])
    done = CliRunner().invoke(app, ["flower", "sent", str(site.place), "--out", str(page)])
    assert done.exit_code == 0
    text = page.read_text()
    assert "What left north" in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "<script>x" not in text
    assert "nothing of it is made of fewer than 6 samples" in text
    lines = read_sent(site.place / SENT)
    assert all(line["checksum"] in text for line in lines)
    assert f"{sum(line['bytes'] for line in lines):,}" in text
    (site.place / SENT).write_text('{"round": 1}\n')
    done = CliRunner().invoke(app, ["flower", "sent", str(site.place)])
    assert "line 1 is not of a sent.jsonl" in str(done.exception)
