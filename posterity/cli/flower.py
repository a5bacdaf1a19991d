"""`posterity flower new DIR`: the commands for methods across machines; the work is done by `posterity/flower/`."""

import shlex
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from posterity.cli.flags import config_flags, option, read_config, with_only
from posterity.settings.config import settings_where

flower = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="The same methods across machines, on Flower.")
STARTING = {"clients": "3", "rounds": "10"}  # of an app for which nothing was said
ALONE = settings_where(lambda use: use.changes in ("sample", "rounding", "nothing") and use.role != "data")
FLAGS = {
    "folder": (Annotated[Path, typer.Argument(help="folder to write, named as the app shall be", metavar="DIR")], ...),
    "sites": option(int | None, None, "sites that must be there before round 1 (default: --clients)", "--sites",
                    panel="Running", metavar="INTEGER"),
    **config_flags(ALONE),
    "clients": option(str | None, None, f"clients of the run (default: {STARTING['clients']}; with --config none)",
                      "--clients", panel="Data", metavar="INTEGER"),
    "rounds": option(str | None, None, f"rounds of training (default: {STARTING['rounds']}; with --config 100)",
                     "--rounds", panel="Training", metavar="INTEGER"),
}  # fmt: skip


@flower.command("new", help="Write an app folder that 'flwr run' starts; its settings are those of 'posterity run'.")
@with_only(FLAGS)
def new(**given: Any) -> None:
    from posterity.flower.new_app import write_app

    folder, sites = given.pop("folder"), given.pop("sites")
    said = {name: value for name, value in given.items() if value is not None}
    config = read_config(said if given["config"] else {**STARTING, **said})
    files = write_app(folder, config, sites or config.clients or 2)
    print("wrote " + ", ".join(str(path) for path in files))
    print(f"start it: FLWR_TELEMETRY_ENABLED=0 flwr run {folder} CONNECTION --stream")
    print("posterity must be installed on server and sites; docs/flower.md has all commands, with TLS and keys")


@flower.command("sent", help="Show what left a site, leaf by leaf: the file sent.jsonl beside the client's record.")
def sent(
    file: Annotated[Path, typer.Argument(help="a site's sent.jsonl, or the folder that holds it", metavar="FILE")],
    out: Annotated[Path | None, typer.Option("--out", help="HTML page to write, too", metavar="FILE")] = None,
) -> None:
    from posterity.cli.listing import print_sent
    from posterity.flower.sent import SENT, read_sent, summarise_sent
    from posterity.report import write_sent_page

    path = file / SENT if file.is_dir() else file
    if not path.is_file():
        raise ValueError(f"there is no {path}: give the folder of a client's record (RECORDS/EXPERIMENT/CLIENT)")
    lines = read_sent(path)
    leaves, place = summarise_sent(lines), path.resolve().parent
    print_sent(path, leaves)
    if out is not None:
        write_sent_page(out, unquote(place.name), unquote(place.parent.name), lines, leaves)
        print(f"wrote {out}")


@flower.command("leave", help="Leave an experiment for good, at the site: it says so when it is asked next.")
def leave(
    folder: Annotated[Path, typer.Argument(help="the folder of this site's record", metavar="RECORDS")],
    back: Annotated[bool, typer.Option("--take-back", help="stay after all, as long as it has not been asked")] = False,
) -> None:
    from posterity.flower.site import find_place, take_back, wish_to_leave

    place = find_place(folder)
    if back:
        take_back(place)
        print(f"{place} takes part as before")
        return
    wish_to_leave(place)
    print(f"{place} leaves when the server asks it next: keep its node running until then")
    print("its record and its own model stay here, for 'posterity flower predict'")
    print(f"it can stay after all until then: posterity flower leave {shlex.quote(str(folder))} --take-back")


@flower.command("predict", help="What a site's own model says about rows of a file: its record, its disk, no network.")
def predict(
    folder: Annotated[Path, typer.Argument(help="the app's folder", metavar="APP")],
    file: Annotated[Path, typer.Argument(help="rows to predict for (.csv, .parquet, .npz)", metavar="FILE")],
    client: Annotated[str, typer.Option("--client", help="the client's name, as in the node's configuration")],
    data: Annotated[Path, typer.Option("--data", help="the client's own file, by which new rows are scaled")],
    records: Annotated[Path, typer.Option("--records", help="the folder of its record")],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write")] = Path("predictions.csv"),
) -> None:
    from posterity.cli.predict import as_csv, as_numbers, check_place, read_rows, write_predictions
    from posterity.data.tables import CLIENT
    from posterity.flower.new_app import read_app
    from posterity.flower.samples import read_site_file
    from posterity.flower.settings import read_settings
    from posterity.flower.site import ClientSite, predict_rows

    told = read_settings(read_app(folder))
    federation, samples = read_site_file(told.config, client, data)
    for read in (file, data):
        check_place(out, read)
    rows = read_rows(file, samples.kind.columns, told.config.client_column or CLIENT, client)
    found = predict_rows(ClientSite(told.config, told.experiment, samples, records), federation, rows.x)
    numbers = as_numbers(found.outputs, not found.classes)
    write_predictions(out, as_csv([client] * len(numbers), numbers, found.classes))
    for note in (*rows.notes, *([found.note] if found.note else [])):
        print(f"note: {note}")
    print(f"wrote {out}: {len(numbers)} rows by the model of {client} after round {found.round}, as {found.point}")
