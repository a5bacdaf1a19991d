"""Who holds which data: a disc for every client and class of each setting. Nothing is trained for it."""

from collections.abc import Sequence

from posterity.experiment.setup import federation_facts, has_files, load_federation
from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.material import FigureDrawing
from posterity.papers.figures.sheet import Panel
from posterity.papers.recipe import Recipe, RecipeCell
from posterity.papers.runs import RunRequest, shrunk
from posterity.report.charts import partition
from posterity.runs.read import FederationFacts, read_federation
from posterity.settings.config import Config

WIDTH, WIDER = 560.0, 1140.0  # of a panel; of one with more than `MANY` clients
MANY, MOST = 60, 200
KEY = "Area of a disc: training samples of a client (across) and a class (up), on a scale of its own in each panel."
BARS = "Bars: each client's training (blue), validation (brown) and test samples (grey)."


def draw(figure: Figure, made: Sequence[Recipe], asked: RunRequest) -> FigureDrawing:
    """A panel for every setting whose data are here; the others are named."""
    found: list[tuple[str, FederationFacts]] = []
    missing: list[str] = []
    seed = (asked.seeds or (0,))[0]
    for recipe in made:
        for cell in recipe.cells:
            config = recipe.config(cell, {**shrunk(recipe, cell, asked.scale), **asked.more, "seed": seed})
            title = _title(config, cell)
            try:
                found.append((title, read_federation(federation_facts(load_federation(config)))))
            except ValueError as error:
                if has_files(config):
                    raise
                missing.append(f"{title} ({error})")
    if not found:
        raise ValueError(f"{figure.id} needs the labels of its data, and none are here: {'; '.join(missing)}")
    wide = any(facts.clients > MANY for _, facts in found)
    panels = [_panel(name, facts, WIDER if wide else WIDTH) for name, facts in found]
    about = [f"Drawn with seed {seed}; nothing is trained. {KEY} {BARS}"]
    left = [f"Left out: {each}" for each in missing]
    counts = [{"setting": name, "clients": facts.clients, "newcomers": facts.newcomers, "counts": facts.histogram}
              for name, facts in found]  # fmt: skip
    below = [each.split(" (")[0] + ": no data here." for each in left]
    return FigureDrawing(panels, about, {"seed": seed, "panels": counts}, 1 if wide else 2, below, tuple(left))


def _title(config: Config, cell: RecipeCell) -> str:
    part = f", {config.subset} of it" if config.subset else ""
    return f"{config.dataset}{part}, {cell.name}"


def _panel(name: str, facts: FederationFacts, width: float) -> Panel:
    held = sum(n > 0 for row in facts.histogram for n in row) / max(facts.clients, 1)
    newcomers = f", the last {facts.newcomers} of them newcomers" if facts.newcomers else ""
    most = max(map(max, facts.histogram))
    remark = (f"{facts.clients} clients{newcomers}; {held:.1f} of {facts.classes} classes a client; "
              f"{sum(facts.train):,} training samples, {most} in the largest disc")  # fmt: skip
    return Panel(name, partition(facts, width, MOST, overlap=True), remark)
