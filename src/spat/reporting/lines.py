"""Events in words: one line each, for a terminal's scrollback, a log file or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spat.records import Event
from spat.reporting.wording import count, duration, is_number, number, percent, terms

Values = Mapping[str, Any]
GAP = "  "


@dataclass(frozen=True)
class Line:
    """One line; a lasting one is always shown, another only now and then."""

    text: str
    lasting: bool


@dataclass
class Narrator:
    """Says an event in a line. It remembers what a later event does not repeat."""

    left: str = ""
    checkpoint: str = ""

    def __call__(self, event: Event) -> Line | None:
        say: dict[str, Callable[[Values], Line | None]] = {
            "start": lambda values: Line(started(values), True),
            "step": self._step,
            "epoch": lambda values: Line(epoch(values, self.left), True),
            "checkpoint": self._checkpoint,
            "note": lambda values: Line(one_line(values.get("text", "")), True),
            "attack": lambda values: Line(attacked(values), _is_lasting(values)),
            "wave": lambda values: Line(waved(values), True),
            "doubt": lambda values: Line(doubted(values), False),
            "end": lambda values: Line(ended(values, self.checkpoint), True),
        }
        return say[event.kind](event.values) if event.kind in say else None

    def _step(self, values: Values) -> Line:
        self.left = duration(values.get("eta_s"))
        return Line(step(values), False)

    def _checkpoint(self, values: Values) -> None:
        """Not a line of its own: there is one with every epoch."""
        self.checkpoint = one_line(values.get("path", ""))


def started(values: Values) -> str:
    settings = values.get("settings")
    given = settings if isinstance(settings, Mapping) else {}
    what = [f"{word} {given[key]}".strip() for word, key in _WHAT if given.get(key)]
    facts = [
        _with("training images", count(values.get("train"))),
        _with("validation images", count(values.get("validation"))),
        _with("parameters", count(values.get("parameters"))),
        " ".join(str(values[key]) for key in ("device", "precision") if values.get(key)),
        _schedule(values),
    ]
    opening = " ".join(["training", *what])
    return one_line(f"{opening}: {', '.join(filter(None, facts))}".removesuffix(": "))


def step(values: Values) -> str:
    return _joined(
        place("epoch", values.get("epoch"), values.get("epochs")),
        place("step", values.get("step"), values.get("steps")),
        loss(values),
        _with("images/s", number(values.get("images_per_s"), ",.0f")),
        _with("left", duration(values.get("eta_s"))),
    )


def epoch(values: Values, left: str) -> str:
    return _joined(
        place("epoch", values.get("epoch"), values.get("epochs")),
        loss(values),
        validation(values),
        _named("lr", number(values.get("lr"))),
        _with("images/s", number(values.get("images_per_s"), ",.0f")),
        _with("left", left if values.get("epoch") != values.get("epochs") else ""),
        "best so far" if values.get("best") else "",
    )


def attacked(values: Values) -> str:
    """Progress on the images that were right before the attack: no share of all of them."""
    name, held, done = values.get("attack", "attack"), values.get("held"), values.get("done")
    kept = _with("held", count(held))
    if _is_complete(values):
        took = duration(values.get("seconds"))
        facts = [_with("attacked images", f"of {count(done)}") if kept else "", took]
        return one_line(f"{name}: {kept} {', '.join(filter(None, facts))}".strip())
    facts = [place("image", done, values.get("n")), kept]
    facts.append(_with("left", duration(values.get("eta_s"))))
    return one_line(f"{name}: {', '.join(filter(None, facts))}")


def waved(values: Values) -> str:
    """How sure the worst case is by now, of the images that were attacked to the end."""
    worst = _named("worst case", percent(values.get("worst")))
    between = _between(values.get("low"), values.get("high"))
    found = worst + (f" ({between})" if worst and between else "")
    told = ", ".join(filter(None, [found, _with("left", duration(values.get("eta_s")))]))
    return one_line(f"{place('image', values.get('n'), values.get('of'))}: {told}")


def _between(low: Any, high: Any) -> str:
    if not (is_number(low) and is_number(high)):
        return ""
    half = f"\u00b1{50 * (high - low):.1f} pp"
    return f"95% interval {percent(low)} to {percent(high)}, {half}"


def doubted(values: Values) -> str:
    """Which doubt an audit looks into now."""
    at = place("doubt", (values.get("done") or 0) + 1, values.get("n"))
    spent = _with("so far", duration(values.get("seconds")))
    return one_line(", ".join(filter(None, [f"{at}: {values.get('doubt', '')}", spent])))


def ended(values: Values, checkpoint: str) -> str:
    after = _named("after", duration(values.get("seconds")))
    if values.get("stopped"):
        at = place("at step", values.get("step"), None)
        resume = f"; go on from {checkpoint}" if checkpoint else ""
        return " ".join(filter(None, ["stopped", at, after])) + resume
    epochs = _with("epochs", count(values.get("epochs")))
    return " ".join(
        filter(None, ["trained", epochs, _named("in", duration(values.get("seconds")))])
    )


def loss(values: Values) -> str:
    parts = ", ".join(f"{name} {value}" for name, value in terms(values).items())
    return _named("loss", number(values.get("loss"))) + (f" ({parts})" if parts else "")


def validation(values: Values) -> str:
    """Accuracy on the validation split; a robust one never without its attack."""
    attack = values.get("val_attack") or "an attack that was not named"
    clean = _named("clean", percent(values.get("val_clean")))
    robust = _named(str(attack), percent(values.get("val_robust")))
    return _named("validation:", ", ".join(filter(None, [clean, robust])))


def place(word: str, at: Any, of: Any) -> str:
    """epoch 3/20, padded so that lines of a run stand under each other."""
    here, there = number(at, "d" if isinstance(at, int) else "g"), count(of).replace(",", "")
    return f"{word} {here.rjust(len(there))}" + (f"/{there}" if there else "") if here else ""


def one_line(text: object) -> str:
    """Text from outside as one line that cannot move the cursor."""
    return "".join(c if c.isprintable() else " " for c in str(text)).strip()


_WHAT = (("", "model"), ("with", "defence"), ("on", "data"))


def _schedule(values: Values) -> str:
    epochs, steps = count(values.get("epochs")), count(values.get("steps_per_epoch"))
    of = f" of {steps} steps" if steps else ""
    return f"{epochs} epochs{of}" if epochs else ""


def _is_lasting(values: Values) -> bool:
    """Of waves, of which there may be hundreds, each has one line of its own."""
    return _is_complete(values) and "wave" not in values


def _is_complete(values: Values) -> bool:
    return values.get("done") is not None and values.get("done") == values.get("n")


def _named(word: str, value: str) -> str:
    return f"{word} {value}" if value else ""


def _with(unit: str, value: str) -> str:
    return f"{value} {unit}" if value else ""


def _joined(*parts: str) -> str:
    return GAP.join(one_line(part) for part in parts if part)
