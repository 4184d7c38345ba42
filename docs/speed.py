"""The page docs/performance.md: what the benchmarks of speed and precision measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spat.records import Record
from spat.results import load_all, over_seeds, read_json

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "results" / "performance"
STAGES = ("apgd-ce", "apgd-t", "fab-t", "square")
AUTOATTACK = (
    "`benchmarks/autoattack.py`: `standard` on SmallCNN, with `pyautoattack`, with exact and with "
    "fast mode ([autoattack.md](autoattack.md)), each in a process of its own. Stages are the "
    "seconds of APGD-CE, APGD-T, FAB-T and Square; the peak of memory includes Python and torch."
)
PERFORMANCE = (
    "What a training step costs, what each idea in it bought, and how far it is from what the "
    "machine can do; what did not help is told in [tried.md](tried.md). Ratios are of best turns, "
    "taken in turns in one run, each contender in a process of its own; seconds are those of the "
    "machine that is named. `make bench` measures all of it again, `make docs` writes this page."
)


def page(note: str) -> str:
    found = {path.stem: read_json(path) for path in sorted(MEASURED.glob("*.json"))}
    lines = [note, "# Performance", "", PERFORMANCE, ""]
    claims = [claim for name in ("step", "peers") for claim in found[name]["claims"]]
    lines += ["## The claims", "", "| claim | measured | bar | |", "|---|---|---|---|"]
    lines += [_claim(claim, 2) for claim in claims]
    lines += ["", _where(found["step"]), "", *_waterfall(found["waterfall"])]
    lines += [*_roofline(found["waterfall"]), *_precision(), *_autoattack(found)]
    lines += _gpu(found["gpu"]) if "gpu" in found else []
    return "\n".join(lines)


def _autoattack(found: dict[str, Any]) -> list[str]:
    measured = {name.partition("-")[2]: v for name, v in found.items() if "autoattack" in name}
    if not measured:
        return []
    lines = ["", "## AutoAttack against the official code", "", AUTOATTACK, ""]
    lines += ["| claim | measured | bar | |", "|---|---|---|---|"]
    lines += [_claim(claim, 3) for facts in measured.values() for claim in facts["claims"]]
    lines += ["", "| model | images | queries | | time | times as fast | stages | robust | peak |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name, facts in measured.items():
        lines += [_attacked(name, facts, contender) for contender in facts["runs"]]
    return [*lines, "", *{_where(facts): None for facts in measured.values()}]


def _attacked(name: str, facts: dict[str, Any], contender: str) -> str:
    run, base = facts["runs"][contender], facts["runs"]["official"]["seconds"]
    stages = " + ".join(f"{run['stages'].get(stage, 0.0):.1f}" for stage in STAGES)
    return (
        f"| {name} | {facts['n']} | {facts['queries']} | {contender} | {run['seconds']:.1f} s "
        f"| {base / run['seconds']:.1f} | {stages} | {100 * run['robust']:.1f} % "
        f"| {run['memory'] / 2**20:.0f} MiB |"
    )


def _claim(claim: dict[str, Any], digits: int) -> str:
    verdict = "reached" if claim["ratio"] >= claim["bar"] else "missed"
    return f"| {claim['text']} | {claim['ratio']:.{digits}f} | {claim['bar']:g} | {verdict} |"


def _where(found: dict[str, Any]) -> str:
    """What a time was measured on."""
    own = found["machine"]
    return (
        f"{own['processor']}, {own['threads']} threads, torch {own['torch']}, {found['clock']} "
        f"time, best of {found['rounds']}."
    )


def _waterfall(found: dict[str, Any]) -> list[str]:
    lines = ["## The waterfall", "", "SPAT's training step, each row with one idea more."]
    for model, seconds in found["seconds"].items():
        n, first, before = found["batch"][model], next(iter(seconds.values())), None
        lines += ["", f"### {model}, batch {n}", ""]
        lines += [
            "| | seconds | images/s | of the first | of the row before |",
            "|---|---|---|---|---|",
        ]
        for name, s in seconds.items():
            gain = f"{before / s:.2f}" if before else ""
            lines.append(f"| {name} | {s:.3f} | {n / s:.1f} | {first / s:.2f} | {gain} |")
            before = s
        waited = found["compiler_seconds"][model]
        lines += ["", f"The first compiled step took {waited:.0f} s; torch keeps what it compiled."]
    lines += ["", _where(found), "", "## The iterates", ""]
    lines += ["Share of the pixels of SPAT's x' on ResNet-18 that are not the slow twin's, %.", ""]
    modes = list(found["apart"]["1"])
    lines += [f"| steps | {' | '.join(modes)} |", "|---" * (len(modes) + 1) + "|"]
    for steps, own in found["apart"].items():
        lines.append(f"| {steps} | {' | '.join(f'{100 * own[mode]:.2f}' for mode in modes)} |")
    return [*lines, ""]


def _roofline(found: dict[str, Any]) -> list[str]:
    roof = found["roof"]
    lines = [
        "## The roofline",
        "",
        f"Matrix products: {roof['float32']:.0f} GFLOP/s in float32, {roof['bfloat16']:.0f} in "
        f"bfloat16. Memory (a = b + s c): {roof['triad']:.0f} GB/s. Each convolution alone, for "
        "the whole batch with all threads: operations a byte moved, and GFLOP/s, forward and back "
        "to its input. A layer of few operations a byte is bound by memory.",
    ]
    for model, rows in found["layers"].items():
        lines += ["", f"### {model}, batch {found['batch'][model]}", ""]
        lines += ["| convolution | times | FLOP/byte, float32 | forward | back |"]
        lines[-1] += " FLOP/byte, bfloat16 | forward | back |"
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [
            f"| {row['layer']} | {row['times']} | "
            + " | ".join(
                f"{row[f'{kind} {what}']:.0f}"
                for kind in ("float32", "bfloat16")
                for what in ("intensity", "forward", "back")
            )
            + " |"
            for row in rows
        ]
    return [*lines, ""]


def _gpu(found: dict[str, Any]) -> list[str]:
    lines = ["## On a GPU", "", f"{found['gpu']}, `benchmarks/gpu.py`: images a second."]
    for n, speeds in found["images_a_second"].items():
        lines += ["", f"| ResNet-18, batch {n}, K = 10 | images/s | of the twin |", "|---|---|---|"]
        for name, speed in speeds.items():
            lines.append(f"| {name} | {speed:.0f} | {speed / speeds['twin']:.2f} |")
    lines += ["", "How far apart what is computed is:", ""]
    return [*lines, *(f"* {name}: {value:.2g}" for name, value in found["off"].items()), ""]


def _precision() -> list[str]:
    """Accuracies by seed, and the differences to exact."""
    held: dict[str, dict[int, float]] = {}
    records = list(load_all(ROOT / "results" / "precision").values())
    for record in records:
        mode = "exact" if record.settings["exact"] else str(record.settings["precision"])
        held.setdefault(mode, {})[int(record.seeds["training"])] = _under(record, "pgd-20")
    first = records[0]
    lines = [
        "## Precision and robustness",
        "",
        f"SmallCNN after {first.settings['epochs']} epochs of {first.settings['defence']} at eps "
        f"{first.eps:g}, accuracy under PGD-20 on {first.measured[0].n} test images, seed by seed "
        "(`benchmarks/precision.py`). The difference is to exact with the same seed, with its 95% "
        "interval over the seeds: within noise if zero lies inside.",
        "",
        "| mode | accuracy % | difference | interval |",
        "|---|---|---|---|",
    ]
    for mode in ("exact", "float32", "bfloat16"):
        told = ", ".join(f"{100 * held[mode][seed]:.1f}" for seed in sorted(held[mode]))
        lost = over_seeds([held[mode][s] - held["exact"][s] for s in sorted(held["exact"])])
        assert lost.low is not None
        assert lost.high is not None
        gap = f"{100 * lost.mean:+.1f} | {100 * lost.low:+.1f} to {100 * lost.high:+.1f}"
        lines.append(f"| {mode} | {told} | {' | ' if mode == 'exact' else gap} |")
    return [*lines, ""]


def _under(record: Record, attack: str) -> float:
    return min(m.value for m in record.measured if m.attack.partition(" ")[0] == attack)
