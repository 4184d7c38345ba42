"""A sweep without Ray: what is checked before, what is done and kept, what is shown.

The pool here runs each task by itself, in this process; that of Ray has its own test.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from spat.errors import UserError
from spat.records import Event
from spat.reporting.board import Board, Runs
from spat.reporting.runs import print_runs
from spat.results import load_all
from spat.sweep.drive import Drive
from spat.sweep.plan import Sweep, planned
from spat.sweep.task import Ending, Task, attempt
from spat.training.sinks import read_events

SETTINGS = """
data = { name = "npz", path = "own.npz" }
model = "mine.py:make"
eps = 0.1
epochs = 2
batch_size = 10
attacks = ["fgsm"]
device = "cpu"
"""
GRID = '[grid]\ndefence = ["natural"]\nseed = [0, 1]\n'
pytestmark = pytest.mark.usefixtures("own_place")


class Here:
    """A pool of one; `losses`: how often a run's process is lost before it does anything."""

    def __init__(self, **losses: int) -> None:
        self.queue: list[Task] = []
        self.losses = Counter(losses)

    def start(self, task: Task) -> None:
        self.queue.append(task)

    def ended(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        task = self.queue.pop(0)
        if self.losses[task.name] > 0:
            self.losses[task.name] -= 1
            yield task.name, Ending("lost", "its process was killed.")
        else:
            yield task.name, attempt(task)


def plan(text: str = SETTINGS + GRID, only: Sequence[str] = ()) -> Sweep:
    Path("grid.toml").write_text(text)
    return planned(Path("grid.toml"), {}, Path("out"), only)


def carried_out(
    sweep: Sweep,
    pool: Here | None = None,
    stop: Callable[[Drive], bool] = lambda drive: False,
    tell: Callable[[Event], None] = lambda event: None,
) -> Drive:
    drive = Drive(sweep, pool or Here(), tell, lambda: stop(drive))
    with sweep.folder.held():
        drive.carry_out()
    return drive


def states(drive: Drive) -> dict[str, str]:
    return {name: ending.state for name, ending in drive.endings.items()}


def test_each_run_leaves_a_folder_and_a_record() -> None:
    drive = carried_out(plan())
    assert states(drive) == {"natural_seed-0": "finished", "natural_seed-1": "finished"}
    kept = load_all(Path("out/records")).values()
    assert {record.seeds["training"] for record in kept} == {0, 1}
    noted = json.loads(Path("out/sweep.json").read_text())["runs"]
    assert noted["natural_seed-1"]["state"] == "finished"
    own = json.loads(Path("out/natural_seed-1/settings.json").read_text())
    assert noted["natural_seed-1"]["hash"] == own["hash"]  # resolved once for both seeds
    assert not Path("out/run.lock").exists()


def test_finished_runs_stay_and_new_ones_are_added() -> None:
    carried_out(plan())
    before = Path("out/natural_seed-0/record.json").stat()
    drive = carried_out(plan(SETTINGS + GRID.replace("[0, 1]", "[0, 1, 2]")))
    assert set(states(drive).values()) == {"finished"}
    assert len(drive.records) == len(load_all(Path("out/records"))) == 3
    assert Path("out/natural_seed-0/record.json").stat().st_mtime_ns == before.st_mtime_ns


def test_a_run_that_fails_stops_no_other_and_is_tried_again() -> None:
    Path("fragile.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n"
        "class Make(nn.Sequential):\n"
        "    def __init__(self, classes, channels):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64 * channels, classes))\n"
        "    def forward(self, x):\n"
        "        if self.training and Path('broken').exists():\n"
        "            raise RuntimeError('it is broken')\n"
        "        return super().forward(x)\n"
    )
    text = SETTINGS.replace('model = "mine.py:make"', "")
    text += '[grid]\ndefence = ["natural"]\nmodel = ["fragile.py:Make", "mine.py:make"]\n'
    Path("broken").touch()
    drive = carried_out(plan(text))
    assert states(drive) == {
        "fragile.py-make_natural": "failed",
        "mine.py-make_natural": "finished",
    }
    assert "it is broken" in drive.endings["fragile.py-make_natural"].reason
    assert "forward" in Path("out/failures/fragile.py-make_natural.txt").read_text()
    Path("broken").unlink()
    assert set(states(carried_out(plan(text))).values()) == {"finished"}
    assert list(Path("out/failures").iterdir()) == []


def test_a_stop_reaches_every_run_and_the_same_command_goes_on() -> None:
    sweep = plan()
    drive = carried_out(sweep, stop=lambda drive: len(drive.endings) == 1)
    assert states(drive) == {"natural_seed-0": "finished", "natural_seed-1": "stopped"}
    assert not sweep.folder.stop.exists()
    assert set(states(carried_out(plan())).values()) == {"finished"}


def test_a_run_is_stopped_in_the_middle_and_resumes() -> None:
    sweep = plan(SETTINGS.replace("epochs = 2", "epochs = 500") + GRID, only=["*seed-0"])
    (task,) = sweep.tasks()
    seen = []

    class Stop:
        """The file `stop`, which comes into being while the run is under way."""

        def exists(self) -> bool:
            seen.append(None)
            return len(seen) > 5

    stopped = attempt(Task(task.name, task.experiment, task.place, task.folder, Stop()))  # type: ignore[arg-type]
    assert stopped == Ending("stopped")
    steps = [e.values["step"] for e in read_events(task.folder / "events.jsonl") if e.kind == "end"]
    assert steps == [4]


def test_a_lost_process_is_replaced_once() -> None:
    drive = carried_out(plan(), Here(**{"natural_seed-0": 1, "natural_seed-1": 2}))
    assert states(drive) == {"natural_seed-0": "finished", "natural_seed-1": "failed"}
    reason = drive.endings["natural_seed-1"].reason
    assert reason == "for the second time, its process was killed."


def test_a_changed_setting_is_refused_by_name() -> None:
    carried_out(plan())
    with pytest.raises(UserError) as caught:
        plan(SETTINGS.replace("epochs = 2", "epochs = 3") + GRID)
    assert "natural_seed-0 was begun with epochs 2, and is now to have 3: undo" in str(caught.value)


def test_a_batch_size_that_each_run_finds_for_itself_is_no_change() -> None:
    text = SETTINGS.replace("batch_size = 10", 'batch_size = "auto"') + GRID
    assert set(states(carried_out(plan(text))).values()) == {"finished"}
    again = plan(text)
    assert again.tasks() == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GRID.replace("[0, 1]", "[0, 0]"), "the same run more than once (natural_seed-0, "),
        (
            '[grid]\ndefence = ["natural"]\nlr = [0.1, "1/10"]\n',
            "the same run more than once (natural_lr-0.1, natural_lr-1-10): every setting",
        ),
        (
            '[grid]\ndefence = ["natural", "spat"]\n',
            "run spat: spat works on cosines: give the model a cosine head",
        ),
    ],
)
def test_every_run_is_checked_before_the_first_starts(text: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        plan(SETTINGS + text)
    assert told in str(caught.value)
    assert not Path("out").exists()


def test_an_attack_is_checked_too() -> None:
    text = (
        SETTINGS.replace('attacks = ["fgsm"]', 'defence = "natural"')
        + '[grid]\nattacks = ["pgd-2", "pdg-20"]\n'
    )
    with pytest.raises(UserError, match="run attacks-pdg-20: unknown attack 'pdg-20'. Did you"):
        plan(text)


def test_only_some_runs() -> None:
    assert [run.name for run in plan(only=["*seed-1"]).runs] == ["natural_seed-1"]
    with pytest.raises(UserError, match="unknown run 'natural_sed-1'. Did you mean"):
        plan(only=["natural_sed-1"])


def test_a_folder_of_something_else_is_refused() -> None:
    Path("out").mkdir()
    Path("out/thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="already exists and is no sweep; choose another --out."):
        plan()


def test_two_sweeps_of_one_folder_are_refused() -> None:
    sweep = plan()
    with (
        sweep.folder.held(),
        pytest.raises(UserError, match="out is in use by process"),
        plan().folder.held(),
    ):
        pass


def test_plain_lines_and_the_closing_tables() -> None:
    out, said = io.StringIO(), io.StringIO()
    with Board(said) as board:
        drive = carried_out(plan(), Here(**{"natural_seed-0": 1}), tell=board)
    lines = [line for line in said.getvalue().splitlines() if line.startswith("[")]
    assert lines[0] == (
        "[0/2] natural_seed-0: its process was killed. It goes on from its checkpoint."
    )
    assert lines[1].startswith("[1/2] natural_seed-1: finished: clean ")
    assert lines[1].endswith("% (fgsm, eps 0.1, n 40)")
    assert "natural_seed-1: epoch 2/2" in said.getvalue()
    groups = {run.name: run.group for run in drive.sweep.runs}
    print_runs(
        {name: drive.records[name] for name in groups},
        groups,
        {"natural_seed-2": "out of luck."},
        out,
    )
    table = out.getvalue().splitlines()
    head = "run clean % 95% interval worst % 95% interval n eps"
    assert " ".join(table[0].split()) == head
    assert table[2].split()[0] == "natural_seed-0"
    assert "worst case = pointwise over fgsm" in table[4]
    mean = [drive.records[name].measured[0].value for name in groups]
    assert table[8].split()[:3] == ["natural", "2", f"{100 * sum(mean) / 2:.2f}"]
    assert table[-1] == "failed: natural_seed-2: out of luck."


def test_a_note_that_holds_for_every_run_is_said_once() -> None:
    runs = Runs()
    notes = [Event("note", {"text": "mind the gap", "run": name}) for name in ("a", "b")]
    assert [runs(note) for note in notes] == ["a: mind the gap", None]


def test_a_terminal_shows_what_runs_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "90")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Board(stream) as board:
        for name in ("trades_seed-0", "b"):
            board(Event("run", {"run": name, "state": "waiting"}))
        board(Event("start", {"run": "trades_seed-0"}))
        long = {f"term.{letter * 9}": 0.5 for letter in "abcdefgh"}
        epoch = {"epoch": 1, "epochs": 2, "loss": 0.5, **long}
        board(Event("epoch", {"run": "trades_seed-0", **epoch}))
        board(Event("note", {"run": "b", "text": "mind the gap"}))  # which draws all anew
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())
    assert "trades_seed-0  epoch 1/2  loss 0.5" in shown
    assert "b: mind the gap" in shown
    assert "1 running, 1 waiting" in shown
