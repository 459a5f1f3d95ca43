"""`bench list recipes` and `bench show RECIPE`. Imports no torch and no numpy."""

import json

from rich.table import Table

from bench.listing import table as print_table
from bench.page import page
from pretrain import recipe as recipes

COLUMNS = ("name", "objective", "imageset", "arch", "epochs", "batch_size", "aliases")


def show_all(as_json: bool) -> None:
    """One line for each recipe, or all of every recipe as JSON."""
    found = [recipes.load(name).model_dump(mode="json") | {"aliases": recipes.aliases(name)} for name in recipes.names()]
    if as_json:
        print(json.dumps({"recipes": found}, indent=2))
        return
    shown = [each | {"aliases": ", ".join(each["aliases"])} for each in found]
    print_table("recipes", [{column.replace("_", " "): str(each[column]) for column in COLUMNS} for each in shown])


def show(word: str) -> None:
    """What the files say about a recipe, and every value with the place it comes from."""
    draft, recipe = recipes.draft(word), recipes.load(word)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(style="dim")
    for key, value in recipe.model_dump(exclude={"name", "aliases"}, exclude_none=True).items():
        if isinstance(value, dict):
            value = ", ".join(f"{word} {item}" for word, item in value.items())
        place = draft.places.get((key,), "").removeprefix(f"{recipes.FOLDER}/")
        table.add_row(key, str(value), place if key in recipe.model_fields_set else "")
    with page() as out:
        alias = f" ({word} is an alias)" if word != recipe.name and not recipes.is_file(word) else ""
        out.print(f"recipe {recipe.name}{alias}", style="bold")
        out.print(table)
        for file, header in draft.headers.items():
            out.print(f"\n{file}", style="bold")
            out.print(header)
