"""List, fetch and verify data sets.

spat data list             what there is, and what of it is on this machine
spat data fetch mnist      bring what is missing, from the first source that has it
spat data verify mnist     compare every file with its published checksum
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spat import catalog
from spat.cli._flags import parser
from spat.errors import UserError


def run(arguments: Sequence[str]) -> int:
    command = parser("data", __doc__ or "")
    command.add_argument("action", choices=("list", "fetch", "verify"))
    command.add_argument("name", nargs="?", help="mnist or cifar10")
    command.add_argument("--root", help="the data folder [$SPAT_DATA, else the user's cache]")
    options = command.parse_args(arguments)
    if options.action == "list":
        return _list(options.root)
    if options.name is None:
        raise UserError(f"say which data set to {options.action}: {', '.join(fetchable())}.")
    dataset = _fetchable(options.name, options.root)
    return _fetch(dataset) if options.action == "fetch" else _verify(dataset)


def fetchable() -> list[str]:
    """The data sets whose files are published with checksums."""
    names = catalog.names("dataset")
    return [name for name in names if hasattr(catalog.find("dataset", name).factory, "fetch")]


def state(name: str, root: str | None = None) -> str:
    """One phrase: whether the files of a published data set are here and whole."""
    statuses = [status for _, status in catalog.build("dataset", name, root=root).verify()]
    if all(status == "ok" for status in statuses):
        return "here, verified"
    if all(status == "missing" for status in statuses):
        return f"not here: spat data fetch {name}"
    return f"not whole: spat data verify {name}"


def _fetchable(name: str, root: str | None) -> Any:
    component = catalog.find("dataset", name)
    if component.name not in fetchable():
        raise UserError(f"{component.name} needs no fetching; these do: {', '.join(fetchable())}.")
    return component.factory(root=root)


def _list(root: str | None) -> int:
    published = fetchable()
    for name in catalog.names("dataset"):
        summary = catalog.find("dataset", name).summary
        print(f"{name:12} {summary}" + (f" [{state(name, root)}]" if name in published else ""))
    return 0


def _fetch(dataset: Any) -> int:
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def report(step: Any) -> None:
            if step.done is None:
                bar.console.print(step.text, highlight=False)
            else:
                bar.update(
                    task,
                    description=step.text,
                    completed=step.done,
                    total=step.total,
                    visible=step.done != step.total,
                )

        dataset.fetch(progress=report)
    return 0


def _verify(dataset: Any) -> int:
    wrong = 0
    for file, status in dataset.verify():
        print(f"{file:28} {status}")
        wrong += status != "ok"
    if wrong:
        raise UserError(f"{wrong} of the files are not as published; fetch them again.")
    return 0
