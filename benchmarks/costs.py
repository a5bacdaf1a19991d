"""What a round of every method costs in rounds of FedAvg: same federation, same local training, one run.

    python benchmarks/costs.py [--device cuda] [--rounds 5] [--engine graph] [--convolution triton]
                                 [--only fedmap,pfedvmp] [--limit 60] [--profile] [--json FILE] [--quick]
    python benchmarks/costs.py --table FILE [FILE …]      Markdown from such JSON; a later file's row takes the place

The federation, network and training of `gpu.py`: 50 clients by Dirichlet(0.3), 12,000 images, batch 10, one epoch. A
method is allowed what it must compute: in units of FedAvg's round a forward pass over everybody's data counts 1/3, a
backward pass 2/3, an extra gradient 1, a product with the Hessian 2 (it has six matrix products a layer where a
gradient has three). What is elementwise, or happens once a round, counts nothing. `measured / expected` up to 1.5 is
good. Beside the count stands what the specification's cost line says in its own units, where it has one.

FedAvg is measured first and once more at the end: the last line shows how much the machine itself drifts. `--profile`
names the kernels that take the extra time, for methods above 1.5. A method is given up after `--limit` seconds,
between two rounds; JSON is written after every method, so a run that is killed leaves what it has. `+ft` and
`+calibrated` change nothing in a round: left out.
`--quick` is a tiny federation, to see that everything runs; its times say nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import gpu
import torch

from posterity.data.federation import Federation
from posterity.engine.blocks import able
from posterity.engine.engines import find_engine
from posterity.engine.round import first_state, train_round
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.settings.names import engine_names

BOUND = 1.5  # measured / expected that is still good
FORWARD, BACKWARD, GRADIENT, PRODUCT = 1 / 3, 2 / 3, 1, 2  # over everybody's data, in rounds of FedAvg
LAYER, NETWORK = 1600 * 512, 7_826_000  # multiplications for a sample: in the noisy layer, in all layers
NOISE = LAYER / NETWORK  # the noisy layer has a second product, for the variance
HYPER = 4 * 200 * LAYER * gpu.CLIENTS / (3 * NETWORK * gpu.IMAGES)  # hyper-network: two forward, one backward pass
CLASSES, PROBES = gpu.CLASSES, 8
POLICY = 2 * 512 * 512 / NETWORK  # FedCP's linear layer D → 2D
FEATURES = "one epoch + a forward pass for the features"
SHOWN = 12  # kernels of a profile


@dataclass(frozen=True)
class Case:
    """A method and what it may cost; the name is its spec, and behind a colon what distinguishes its settings."""

    name: str
    expected: float
    why: str
    stated: str = ""  # by the specification's cost line
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        return self.name.partition(":")[0]


FEDAVG = Case("fedavg", GRADIENT, "one epoch: the unit", "1")
CASES = (
    Case("local", GRADIENT, "one epoch", "1"),
    Case("fedprox", GRADIENT, "one epoch; the pull is elementwise", "about 1"),
    Case("fedper", GRADIENT, "one epoch", "1"),
    Case("fedbn", GRADIENT, "one epoch; this network has no norm layers, so it is FedAvg", "1"),
    Case("fedpa", GRADIENT, "one epoch; averages of iterates and l²d are elementwise", "about 1 + O(l²d)"),
    Case("scaffold", GRADIENT, "one epoch; the correction is elementwise", "1"),
    Case("scaffold:I", 2 * GRADIENT, "one epoch + a gradient over all data", "+1 gradient pass", {"variate": "I"}),
    Case("scaffold:fednp", 2 * GRADIENT, "one epoch + an uncorrected one", "1/E more", {"variate": "fednp"}),
    Case("feddyn", GRADIENT, "one epoch; drifts are elementwise", "1"),
    Case("feddc", GRADIENT, "one epoch; drifts and the correction are elementwise", "1"),
    Case("moon", GRADIENT + 2 * FORWARD, "one epoch + features of two more networks", "about 1.67"),
    Case("lgfedavg", GRADIENT, "one epoch", "1"),
    Case("fedrep", GRADIENT + FORWARD, "one epoch of the base + one of the head, whose base is a forward pass",
         "0.5 + 1"),
    Case("fedrod", GRADIENT, "one epoch; the second head is small", "about 1 + head"),
    Case("fedproto", GRADIENT + FORWARD, FEATURES, "1"),
    Case("fedcp", GRADIENT + FORWARD + POLICY, "one epoch + features of the received base + the policy", "about 1.4"),
    Case("gpfl", GRADIENT, "one epoch; the valve has one product a client", "about 1.2"),
    Case("fedpac", GRADIENT + 3 * FORWARD, "as fedrep + features before and after", "1 head epoch + E + 2 forward"),
    Case("fedep", GRADIENT, "one epoch; factors are elementwise", "1 to 1.5"),
    Case("qlsd", GRADIENT * gpu.CLIENTS * 10 / gpu.IMAGES, "one batch", "1/τ"),
    Case("fedla", GRADIENT, "one epoch; squares of its gradients are elementwise", "1.1 to 2"),
    Case("fedbe", GRADIENT, "one epoch; the server's distillation counts nothing here", "1 + the server"),
    Case("pfedgp", GRADIENT + FORWARD, "an epoch of the base + a forward pass for the tree; kernels count nothing",
         "2 to 20"),
    Case("ditto", 2 * GRADIENT, "an epoch of two models", "2"),
    Case("pfedme", 5 * GRADIENT, "K = 5 gradients a batch", "K"),
    Case("pfedbred", 3.5 * GRADIENT, "mh: K + 2 gradients of half of a double batch", "6 to 8 a batch"),
    Case("apfl", 2 * GRADIENT, "an epoch of two models", "2"),
    Case("fedala", GRADIENT + FORWARD, "one epoch + one for the weights of the last layer", "1 + one epoch"),
    Case("pfedbayes", 5 * GRADIENT, "5 gradients a batch; divergences are elementwise", "5 inner steps"),
    Case("pvi", 2 * GRADIENT, "a gradient of mean and variance: two draws", "1 to 2"),
    Case("fedmap", GRADIENT + FORWARD, "one epoch + a forward pass for L", "as FedAvg + one squared distance"),
    Case("fednp", GRADIENT + FORWARD, "one epoch + a forward pass for f", "epochs dominate; paper 19 s for 15 s"),
    Case("pfedvmp:isotropic", GRADIENT + FORWARD, FEATURES, "one epoch + one forward pass", {"mode": "isotropic"}),
    Case("pfedvmp:count", GRADIENT + FORWARD, FEATURES, "one epoch + one forward pass", {"mode": "count"}),
    Case("reptile", GRADIENT, "one epoch", "1"),
    Case("maml:first", GRADIENT, "gradients of a support (1/3 of the data) and a query (2/3)", "",
         {"order": "first"}),
    Case("maml", GRADIENT + PRODUCT / 3, "the same + a Hessian product on the support", "about 2.5 to 3"),
    Case("perfedavg:none", GRADIENT, "gradients of two halves of the data", "2 gradients a meta-step",
         {"hvp": "none"}),
    Case("perfedavg", 4 / 3 * GRADIENT, "4 gradients on thirds of the data", "4 gradients a meta-step"),
    Case("perfedavg:exact", GRADIENT + PRODUCT / 2, "gradients of two halves + a Hessian product on one", "",
         {"hvp": "exact"}),
    Case("fedavg+snip", GRADIENT, "one epoch; the mask is elementwise", "its host"),
    Case("fedavg+metavd", 1 + NOISE + HYPER, "one epoch with a second product in one layer + the hyper-network",
         "about 1.1 + a forward pass and a VJP of the hyper-network"),
    Case("fedavg+drop", 1 + NOISE + HYPER, "as +metavd; the mask is elementwise"),
    Case("reptile+metavd", 1 + NOISE + HYPER, "as fedavg+metavd"),
    Case("maml+metavd", 5 / 3 * (1 + NOISE) + HYPER, "maml with a second product in one layer + the hyper-network"),
    Case("perfedavg+metavd", 4 / 3 * (1 + NOISE) + HYPER, "perfedavg, in the same way"),
    Case("fedbps:empirical_fisher", 2 * GRADIENT, "one epoch + a gradient of every row", "+1 pass, 1 to 2 epochs",
         {"curvature": "empirical_fisher"}),
    Case("fedbps:mc_fisher", 2 * GRADIENT, "one epoch + a gradient of every row", "+1 pass, 1 to 2 epochs",
         {"curvature": "mc_fisher"}),
    Case("fedbps:ggn", GRADIENT + FORWARD + CLASSES * BACKWARD, "one epoch + a forward pass, a backward one per class",
         "", {"curvature": "ggn"}),
    Case("fedbps:hutchinson", 2 * GRADIENT + PROBES * PRODUCT, "one epoch + a gradient + a Hessian product per probe",
         "", {"curvature": "hutchinson", "probes": str(PROBES)}),
    Case("pfedvmp:shrinkage", GRADIENT + FORWARD, FEATURES, "the same + O(Z²d) a class", {"mode": "shrinkage"}),
    Case("pfedvmp:printed", GRADIENT + FORWARD, FEATURES, "the same + O(Z²d) a class", {"mode": "printed"}),
)  # fmt: skip
AGAIN = Case("fedavg:again", GRADIENT, "one epoch, at the end of the run", "1")


@dataclass(frozen=True)
class BatchPlan:
    """How everything is measured."""

    device: str
    engine: str
    convolution: str
    rounds: int
    warm: int  # rounds before the first that counts
    limit: float  # seconds for one method
    profile: bool


@dataclass(frozen=True)
class Timing:
    ms: float  # median of the rounds that count, or the last one if none was reached
    rounds: int  # that count
    warm_s: float  # what went before them
    refused: int  # messages that were left out


@dataclass(frozen=True)
class Row:
    """One line of the table. None: not known, because it failed or was given up before it was warm."""

    case: Case
    timing: Timing | None = None
    ratio: float | None = None  # to FedAvg in this run
    against: float | None = None  # ratio / expected
    good: bool | None = None
    error: str = ""
    kernels: dict[str, float] = field(default_factory=dict)  # name -> ms of one round, if it was profiled


def rounds_of(sim: Simulation, plan: BatchPlan) -> Iterator[RoundLog]:
    """One round after another, each finished on the device."""
    state, store, everyone = first_state(sim), Store(sim.federation.clients, plan.device), able(sim)
    for number in itertools.count(1):
        state, log = train_round(sim, find_engine(plan.engine), state, store, everyone, number, plan.warm + plan.rounds)
        gpu.wait(plan.device)
        yield log


def clock(rounds: Iterator[RoundLog], plan: BatchPlan) -> Timing:
    """The warm-up and the rounds that count, unless time is up before."""
    begun, refused = time.perf_counter(), 0
    times: list[float] = []
    for log in itertools.islice(rounds, plan.warm + plan.rounds):
        times.append(time.perf_counter() - begun - sum(times))
        refused += len(log.refused)
        if sum(times) > plan.limit:
            break
    counted = times[plan.warm :]
    median = statistics.median(counted or times[-1:])
    return Timing(1000 * median, len(counted), sum(times) - sum(counted), refused)


def profile(rounds: Iterator[RoundLog], device: str) -> dict[str, float]:
    """Milliseconds of the next round by kernel; by operator where the CPU is the device."""
    kind = "CUDA" if device.startswith("cuda") else "CPU"
    activities = [getattr(torch.profiler.ProfilerActivity, name) for name in dict.fromkeys(("CPU", kind))]
    with torch.profiler.profile(activities=activities) as found:
        next(rounds)
    field_name = "self_device_time_total" if kind == "CUDA" else "self_cpu_time_total"
    own = [event for event in found.key_averages() if event.device_type.name == kind]  # operators repeat their kernels
    return {event.key: getattr(event, field_name) / 1000 for event in own if getattr(event, field_name)}


def describe(row: Row, base: Row) -> str:
    """The kernels whose time differs most from FedAvg's, and how much of a round the device is busy."""
    busy = ", ".join(f"{r.case.name} {sum(r.kernels.values()):.1f} of {r.timing.ms:.1f} ms" for r in (row, base)
                     if r.timing)  # fmt: skip
    extra = {n: row.kernels.get(n, 0.0) - base.kernels.get(n, 0.0) for n in {**row.kernels, **base.kernels}}
    most = sorted(extra, key=lambda n: -extra[n])[:SHOWN]
    lines = [f"    {extra[n]:+9.2f} ms of {row.kernels.get(n, 0.0):9.2f}  {n[:100]}" for n in most]
    return "\n".join([f"    the device is busy for {busy}", *lines])


def judge(case: Case, timing: Timing, unit: Timing) -> Row:
    """The ratios of a timing to FedAvg's; neither may have been given up before it was warm."""
    ratio = timing.ms / unit.ms
    good = ratio / case.expected <= BOUND if timing.rounds and unit.rounds else None
    return Row(case, timing, ratio, ratio / case.expected, good)


def last_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]


def measure(case: Case, federation: Federation, plan: BatchPlan, base: Row | None) -> Row:
    """A method's row, with kernels if it is too slow (or the unit) and they are wanted; errors end nothing."""
    row = Row(case)
    try:
        sim = gpu.make_simulation(federation, case.spec, plan.convolution, plan.device, case.settings)
        rounds = rounds_of(sim, plan)
        timing = clock(rounds, plan)
        row = judge(case, timing, base.timing if base and base.timing else timing)
        if plan.profile and (base is None or row.good is False):
            row = replace(row, kernels=profile(rounds, plan.device))
    except Exception as error:  # the table goes on; a timing stays if only its profile failed
        row = replace(row, error=last_line(error))
        with suppress(Exception):
            gpu.wait(plan.device)
    return row


def show(row: Row) -> str:
    """A line of the table."""
    failed = [f"failed: {row.error[:160]}"] if row.error else []
    if row.timing is None or row.ratio is None or row.against is None:
        return f"{row.case.name:25} {failed[0]}"
    verdict = {True: "yes", False: "NO", None: "?"}[row.good]
    notes = [*failed, *([] if row.timing.rounds else ["given up before it was warm"])]
    notes += [f"{row.timing.refused} messages refused"] if row.timing.refused else []
    notes += [row.case.why + (f" (specification: {row.case.stated})" if row.case.stated else "")]
    return (f"{row.case.name:25} {row.timing.ms:9.1f} {row.ratio:7.2f} {row.case.expected:8.2f} {row.against:9.2f} "
            f"{verdict:>6} {row.timing.warm_s:8.1f}  {'; '.join(notes)}")  # fmt: skip


def choose(only: str) -> list[Case]:
    """The cases named, a method's name standing for all of its settings; FedAvg around them."""
    words = [word for word in only.split(",") if word]
    known = {name for case in (FEDAVG, *CASES) for name in (case.name, case.spec)}
    if unknown := sorted(set(words) - known):
        raise SystemExit(f"no such method: {', '.join(unknown)}; possible: {', '.join(sorted(known))}")
    chosen = [case for case in CASES if not words or {case.name, case.spec} & set(words)]
    return [FEDAVG, *chosen, AGAIN]


def tabulate(files: list[Path]) -> str:
    """The rows of several runs as one table: each method's last one."""
    rows = {row["case"]["name"]: row for file in files for row in json.loads(file.read_text())["rows"]}
    lines = ["| method | ms | ÷ FedAvg | expected | measured ÷ expected | kernels with the most extra time |",
             "|---|--:|--:|--:|--:|---|"]  # fmt: skip
    unit = rows["fedavg"]["kernels"]
    for name, row in rows.items():
        if row["timing"] is None:
            lines.append(f"| {name} | | | {row['case']['expected']:.2f} | | failed |")
            continue
        extra = {n: ms - unit.get(n, 0.0) for n, ms in row["kernels"].items()}
        most = sorted(extra, key=lambda n: -extra[n])[:2] if row["good"] is False else []
        named = "; ".join(f"`{n[:60]}` {extra[n]:+.0f} ms" for n in most)
        judged = f"{row['against']:.2f}" if row["good"] else f"**{row['against']:.2f}**"
        cells = [name, f"{row['timing']['ms']:.1f}", f"{row['ratio']:.2f}", f"{row['case']['expected']:.2f}", judged]
        lines.append(f"| {' | '.join([*cells, named])} |")
    return "\n".join(lines)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after a warm-up of three")
    parser.add_argument("--engine", default="graph", choices=list(engine_names()))
    parser.add_argument("--convolution", default="triton", choices=["native", "patches", "triton"])
    parser.add_argument("--only", default="", help="names with commas between; all settings of a method by its name")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a method is given up")
    parser.add_argument("--profile", action="store_true", help=f"kernels of methods above {BOUND}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", help="files of earlier runs, as a table in Markdown")
    parser.add_argument("--quick", action="store_true", help="a tiny federation, one round of warm-up, one that counts")
    return parser.parse_args(words)


def main(words: list[str]) -> None:
    options = parse(words)
    if options.table:
        print(tabulate(options.table))
        return
    cases = choose(options.only)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("No CUDA device here; --quick --device cpu --convolution native shows that everything runs.")
    size, warm, rounds = ((60, 4), 1, 1) if options.quick else ((gpu.IMAGES, gpu.CLIENTS), 3, options.rounds)
    plan = BatchPlan(options.device, options.engine, options.convolution, rounds, warm, options.limit, options.profile)
    federation = gpu.make_federation(plan.device, *size)
    chip = torch.cuda.get_device_name() if plan.device.startswith("cuda") else platform.machine()
    about = {"torch": torch.__version__, "device": chip, "images": size[0], "clients": size[1], **asdict(plan)}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{'method':25} {'ms':>9} {'ratio':>7} {'expected':>8} {'meas/exp':>9} {'<= ' + str(BOUND):>6} {'warm s':>8}")
    rows: list[Row] = []
    for case in cases:
        row = measure(case, federation, plan, rows[0] if rows else None)
        rows.append(row)
        print(show(row), flush=True)
        if rows[0].timing is None:
            raise SystemExit("FedAvg is the unit: without it nothing can be compared")
        if row.kernels and len(rows) > 1:
            print(describe(row, rows[0]), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"run": about, "rows": [asdict(r) for r in rows]}, indent=1))
        gc.collect()  # worlds have cycles, and their graphs hold device memory
        if plan.device.startswith("cuda"):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
