"""List the components: attacks, data sets, defences and models, with their settings."""

from __future__ import annotations

from collections.abc import Sequence

from spat import catalog
from spat.cli._flags import parser, show
from spat.errors import unknown


def run(arguments: Sequence[str]) -> int:
    command = parser("list", __doc__ or "")
    command.add_argument("kind", nargs="?", help=", ".join(catalog.PACKAGES))
    command.add_argument("name", nargs="?", help="one component, to see its settings")
    options = command.parse_args(arguments)
    kinds = list(catalog.PACKAGES) if options.kind is None else [_kind(options.kind)]
    if options.name:
        print(_settings(kinds[0], options.name))
        return 0
    print("\n\n".join(_listing(kind) for kind in kinds))
    return 0


def _kind(word: str) -> str:
    """`defence` or `defences`."""
    for kind in catalog.PACKAGES:
        if word.lower() in (kind, kind + "s"):
            return kind
    raise unknown("kind of component", word, catalog.PACKAGES)


def _listing(kind: str) -> str:
    lines = [f"{kind}s"]
    for name in catalog.names(kind):
        lines.append(f"  {name:18} {catalog.find(kind, name).summary}")
        presets = catalog.presets(kind, name)
        if presets:
            lines.append(f"  {'':18} presets: {', '.join(presets)}")
    return "\n".join(lines)


def _settings(kind: str, name: str) -> str:
    component = catalog.find(kind, name)
    lines = [f"{component.name}: {component.summary}", ""]
    for setting in catalog.settings(kind, name):
        default = "required" if setting.default is catalog.MISSING else show(setting.default)
        lines.append(f"  {setting.name:22} {default:>12}  {setting.help}")
    return "\n".join(lines)
