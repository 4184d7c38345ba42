"""An audit as text: the verdict first, then every reason, then what was looked at in vain."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from spat.findings import Audit, Finding
from spat.reporting.wording import budget, is_unicode, percent, sample, showable
from spat.results import wilson

WIDTH, INDENT = 98, 8


def print_audit(audit: Audit, stream: TextIO | None = None) -> None:
    """Print it as far as the stream can show it."""
    stream = stream if stream is not None else sys.stdout
    text = audit_text(audit)
    if not is_unicode(stream):
        text = text.replace("\u00a0", " ").replace("\u221e", "inf").replace("\u2013", "-")
    stream.write(showable(text, stream) + "\n")


def audit_text(audit: Audit) -> str:
    lines = [f"verdict: {audit.verdict}", _measured(audit), ""]
    for one in audit.flagged:
        lines += [*_wrapped(one.level, f"{one.doubt}: {one.reason}"), *_wrapped("", one.advice)]
    passed = [one.doubt for one in audit.findings if one.level == "green"]
    if passed:
        lines += _wrapped("green", ", ".join(passed))
    return "\n".join([*lines, *_curve(audit.findings)])


def _measured(audit: Audit) -> str:
    """What the attack in question found: the number whose worth is at stake."""
    low, high = (percent(end) for end in wilson(audit.held, audit.n))
    threat = budget(audit.eps, audit.norm)
    clean, held = percent(audit.clean / audit.n), percent(audit.held / audit.n)
    name = audit.attack.partition("(")[0]
    return (
        f"{name}, {threat}, {sample(audit.n)}: clean {clean}, under attack {held} "
        f"(95% interval {low} \u2013 {high})"
    )


def _wrapped(head: str, text: str) -> list[str]:
    gap = " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=head.ljust(INDENT), subsequent_indent=gap)


def _curve(findings: Sequence[Finding]) -> list[str]:
    """Accuracy under attack by the factor on the logits, where it was measured."""
    found = next((one.numbers for one in findings if "scales" in one.numbers), None)
    if found is None:
        return []
    scales, held = found["scales"], found["held"]
    assert isinstance(scales, list)
    assert isinstance(held, list)
    points = [f"x{scale:g} {percent(h)}" for scale, h in zip(scales, held, strict=True)]
    margin = f"margin loss {percent(found['held_margin'])}"
    return ["", *_wrapped("", f"held by logit scale: {', '.join([*points, margin])}")]
