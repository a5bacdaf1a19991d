"""Several seeds at once: the same results as one after the other, in the same folders, through kills."""

from __future__ import annotations

import math
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posterity
from posterity.engine.blocks import able, blocks
from posterity.engine.seeds import MultiSeed
from posterity.experiment import run
from posterity.experiment.compare import compare_runs, resume_all
from posterity.experiment.setup import set_up
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.runs.lines import to_json
from posterity.settings.config import Config

from .kills import CONTEXT, MOMENTS, arm, remains

SMALL = {"dataset": "digits", "clients": 6, "rounds": 4, "evaluate_every": 2, "participation": "50%", "subset": "15%",
         "newcomers": "1", "dtype": "float64", "engine": "stacked", "set": {"model.hidden": "8"}}  # fmt: skip
SEEDS = (0, 3, 5)
NONE = lambda title, rounds: nullcontext(run.silent)  # noqa: E731


def configs(method: str = "fedmap", store: str = "memory") -> list[Config]:
    return [Config(method=method, store=store, seed=seed, **SMALL) for seed in SEEDS]


def folders(out: Path) -> list[Path]:
    return [out / f"seed-{seed}" for seed in SEEDS]


def assert_near(left, right, where=""):
    """Equal, numbers to rounding."""
    assert type(left) is type(right) or {type(left), type(right)} <= {int, float}, where
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for name in left:
            assert_near(left[name], right[name], f"{where}/{name}")
    elif isinstance(left, list):
        assert len(left) == len(right), where
        for i, pair in enumerate(zip(left, right, strict=True)):
            assert_near(*pair, f"{where}/{i}")
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-8, abs=1e-10, nan_ok=True), where
    else:
        assert left == right, where


def lines_of(result):
    return [{k: v for k, v in to_json(line).items() if k != "seconds"} for line in result.lines]


@pytest.mark.parametrize(  # every method keeps the law of seeds
    "method", ["pfedvmp", *(pytest.param(name, marks=pytest.mark.everything) for name in ("fedmap", "fedavg+ft"))]
)
def test_at_once_is_one_after_the_other(method):
    together = run.run_seeds(configs(method))
    for config, result in zip(configs(method), together, strict=True):
        alone = run.start_run(config)
        assert result.config.seed == config.seed
        assert_near(lines_of(result), lines_of(alone))
        x = alone.federation.x[:3]
        assert result.predict_proba(1, x) == pytest.approx(alone.predict_proba(1, x), abs=1e-9)


def test_blocks_that_mix_the_clients_of_seeds():
    """With little memory a block holds some clients of several seeds; who is in which block does not matter."""
    cut = [replace(config, memory=1_500_000) for config in configs()]
    sims = [set_up(config).sim for config in cut]
    multi = MultiSeed.of(sims)
    everyone = multi.numbers([able(sim) for sim in sims])
    stacks = [group.tolist() for group in blocks(multi.joint, everyone, multi.joint.passes())]
    owners = [{client // sims[0].federation.clients for client in group} for group in stacks]
    assert len(stacks) > 1
    assert any(len(some) > 1 for some in owners)
    for result, config in zip(run.run_seeds(cut), configs(), strict=True):
        assert_near(lines_of(result), lines_of(run.start_run(config)))


def test_from_python(tmp_path):
    found = posterity.run_seeds([0, 3], "fedavg", out=tmp_path, **SMALL)
    again = posterity.run_seeds([0, 3], "fedavg", out=tmp_path, **SMALL)  # finished: only read
    assert [r.config.seed for r in found] == [0, 3]
    assert [r.metric() for r in found] == [r.metric() for r in again]
    assert posterity.load(tmp_path / "seed-3").metric() == found[1].metric()
    assert files.read_json(tmp_path / "seed-0" / run_folder.RUN)["together"] == [0, 3]
    more = SMALL["rounds"] + 1
    with pytest.raises(ValueError, match=rf"seed-0 holds a run with other settings \(rounds: there .*, now {more}\)"):
        posterity.run_seeds([0, 3], "fedavg", out=tmp_path, **{**SMALL, "rounds": more})


def go(store: str, out: Path, moment: str | None, count: int) -> None:
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent
    run.WRITING = math.inf
    if moment in ("line", "journal", "row"):
        arm(moment, count)
    elif moment is not None:
        _arm_checkpoint(moment, count)
    run.run_seeds(configs("fedmap", store), folders(out))


def _arm_checkpoint(moment: str, count: int) -> None:
    """Die after the count-th file of a common checkpoint is written, or after the one before has moved (`move`)."""
    from .kills import die

    whole, move, left = files.write_atomic, run_folder.os.replace, [count]

    def write(path, data):
        whole(path, data)
        if path.name == run_folder.CHECKPOINT and moment == "checkpoint":
            left[0] -= 1
            if left[0] == 0:
                die()

    def replace(source, target):
        move(source, target)
        if Path(target).name == run_folder.PREVIOUS and moment == "move":
            left[0] -= 1
            if left[0] == 0:
                die()

    files.write_atomic = write
    run_folder.os.replace = replace


def launch(store: str, out: Path, moment: str | None = None, count: int = 1) -> int:
    worker = CONTEXT.Process(target=go, args=(store, out, moment, count))
    worker.start()
    worker.join()
    return worker.exitcode


@pytest.mark.parametrize("store", ["memory", pytest.param("disk", marks=pytest.mark.everything)])
def test_killed_at_every_write_of_a_common_checkpoint(store, tmp_path):
    assert launch(store, tmp_path / "whole") == 0
    cut, moments = tmp_path / "cut", [m for m in MOMENTS if store == "disk" or m not in ("journal", "row")]
    plans = [(m, c) for m in moments for c in ((1, 2, 3, 4) if m == "checkpoint" else (1, 2))]
    for moment, count in plans:  # one voyage, killed again and again
        code = launch(store, cut, moment, count)
        assert code == -signal.SIGKILL, (moment, count)
        rounds = {path and run_folder.read_saved(path)[1]["round"] for path in run_folder.last_common(folders(cut))}
        assert len(rounds) == 1
        if rounds == {SMALL["rounds"]}:
            break
    assert launch(store, cut) == 0
    assert [remains(out) for out in folders(cut)] == [remains(out) for out in folders(tmp_path / "whole")]


def test_a_comparison_with_its_seeds_at_once(tmp_path):
    base = Config(**SMALL)
    names, seeds = ["fedper"], [0, 3]
    compare_runs(base, names, seeds, tmp_path / "at-once", NONE, together=True)
    compare_runs(base, names, seeds, tmp_path / "apart", NONE)
    for place in ("fedper/seed-0", "fedper/seed-3"):
        one, other = (files.read_lines(tmp_path / how / place / run_folder.METRICS) for how in ("at-once", "apart"))
        assert_near(*([{k: v for k, v in x.items() if k != "seconds"} for x in lines] for lines in (one, other)))
    compare_runs(base, names, [0, 3, 4], tmp_path / "at-once", NONE, together=True)  # one more seed runs alone
    assert "together" not in files.read_json(tmp_path / "at-once" / "fedper" / "seed-4" / run_folder.RUN)


@pytest.mark.parametrize(("own", "written"), [
    pytest.param(False, False, id="memory-by name"),
    pytest.param(True, True, id="folder-of the caller's own"),
    pytest.param(False, True, id="folder-by name", marks=pytest.mark.everything),
    pytest.param(True, False, id="memory-of the caller's own", marks=pytest.mark.everything),
])  # fmt: skip
def test_from_python_all_seeds_of_a_method_at_once(own, written, tmp_path, monkeypatch):
    """Wherever runs are kept, and whoever made the data: a parameter that does nothing would not be noticed."""
    usual, seen = run.train_rounds, []
    monkeypatch.setattr(run, "train_rounds", lambda seeds, *rest: seen.append(len(seeds.sims)) or usual(seeds, *rest))
    data = {"dataset", "clients", "subset", "newcomers"}
    more = {k: v for k, v in {**SMALL, "rounds": 2}.items() if not own or k not in data}
    if own:
        more["federation"] = posterity.data.load("digits", clients=6, newcomers=1, subset="15%")
    out = tmp_path / "runs" if written else None
    found = posterity.compare(["fedavg", "fedper"], (0, 3), together=True, out=out, **more)
    assert seen == [2] * 2 * 2
    apart = posterity.compare(["fedavg", "fedper"], (0, 3), **more)
    assert seen[4:] == [1] * 2 * 4
    for one, other in zip(found.runs, apart.runs, strict=True):
        assert (one.name, one.seed) == (other.name, other.seed)
        assert_near(*([[score.value("accuracy") for score in each.scores] for each in (one, other)]))
    if written:
        again = posterity.compare(["fedavg", "fedper"], (0, 3), together=True, out=out, **more)  # finished: only read
        assert len(seen) == 4 + 8
        assert [each.scores for each in again.runs] == [each.scores for each in found.runs]


class Interrupted(Exception):
    pass


def test_an_interrupted_comparison_goes_on_with_all_seeds_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "WRITING", math.inf)
    base, seeds = Config(**SMALL), [0, 3]

    def stop(title, rounds):
        def watch(round, rounds, lines):
            if round == 3:
                raise Interrupted

        return nullcontext(watch)

    with pytest.raises(Interrupted):
        compare_runs(base, ["fedavg"], seeds, tmp_path, stop, together=True)
    with pytest.raises(ValueError, match="runs at once with the seeds 0, 3"):
        run.resume_run(tmp_path / "fedavg" / "seed-0")
    resume_all(tmp_path / "fedavg", NONE)  # the folder of the method will do
    whole = tmp_path / "whole"
    compare_runs(base, ["fedavg"], seeds, whole, NONE, together=True)
    for seed in seeds:
        place = Path("fedavg") / f"seed-{seed}"
        assert remains(tmp_path / place) == remains(whole / place)


def test_seeds_that_do_not_fit_are_refused():
    one, other = Config(**SMALL), Config(**{**SMALL, "clients": 5, "seed": 1})
    with pytest.raises(ValueError, match="equal numbers of clients; 6 and 5 were given"):
        run.run_seeds([one, other])
    with pytest.raises(ValueError, match="side by side"):
        run.run_seeds([one, one], [Path("a/seed-0"), Path("b/seed-1")])


def test_another_network_is_refused_when_they_go_on(tmp_path):
    """The model of a run that several seeds share is checked as that of a single run."""
    short = {**SMALL, "rounds": 1, "evaluate_every": 1, "set": {}, "out": tmp_path}
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model = posterity.models.wrap(net, "1", 10, shape=(1, 8, 8), fresh=False)
    posterity.run_seeds([0, 3], "fedavg", model=model, **short)
    with torch.no_grad():
        net[1].bias += 1
    other = posterity.models.wrap(net, "1", 10, shape=(1, 8, 8), fresh=False)
    with pytest.raises(ValueError, match="here it is one with other weights"):
        posterity.run_seeds([0, 3], "fedavg", model=other, **short)
