"""The catalog: listing, building, presets, nested settings, and what a typo gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spat import catalog
from spat.attacks.pgd import PGD
from spat.errors import UserError


def test_names_are_files_and_nothing_is_imported() -> None:
    code = (
        "import sys; from spat import catalog; names = catalog.names('attack');"
        "assert 'pgd' in names and 'fgsm' in names and not any(n[0] == '_' for n in names);"
        "assert 'torch' not in sys.modules and 'spat.attacks.pgd' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_spat_is_light() -> None:
    code = "import spat, sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_component_is_found_and_described() -> None:
    for kind in catalog.PACKAGES:
        assert catalog.names(kind), kind
        for name in catalog.names(kind):
            component = catalog.find(kind, name)
            assert component.summary.endswith("."), (kind, name, component.summary)
            for setting in catalog.settings(kind, name):
                assert setting.help, f"{kind} {name} does not say what {setting.name} is"


def test_a_new_file_is_a_new_component(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "push_all.py").write_text(
        '"""One file."""\nfrom spat.attacks._base import Attack\n\n'
        'class PushAll(Attack):\n    """Pushes."""\n\nPRESETS = {"hard": {"eps": 0.5}}\n'
    )
    import spat.attacks

    monkeypatch.setattr(spat.attacks, "__path__", [*spat.attacks.__path__, str(tmp_path)])
    monkeypatch.setattr(catalog, "_folder", lambda kind: spat.attacks.__path__)
    assert "push-all" in catalog.names("attack")
    assert catalog.find("attack", "push_all").summary == "Pushes."
    assert catalog.build("attack", "push-all-hard").eps == 0.5
    sys.modules.pop("spat.attacks.push_all")


def test_presets_and_nested_settings() -> None:
    official = catalog.build("defence", "spat-official")
    assert (official.scale, official.attack.eps, official.attack.step_size) == (8.0, 0.031, 0.007)
    changed = catalog.build("defence", "spat-official", **{"attack.steps": 3, "scale": 4.0})
    assert (changed.scale, changed.attack.steps, changed.attack.eps) == (4.0, 3, 0.031)
    whole = catalog.build("defence", "spat", attack=PGD(steps=2))
    assert whole.attack == PGD(steps=2)


def test_settings_show_the_values_of_the_preset_and_of_the_inner_attack() -> None:
    shown = {s.name: s.default for s in catalog.settings("defence", "spat-official")}
    assert shown["scale"] == 8.0
    assert shown["attack.step_size"] == 0.007
    assert shown["attack.start"] == "normal"


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("attack", "pdg", "unknown attack 'pdg'. Did you mean 'pgd'? Known: "),
        ("attack", "zzz", "unknown attack 'zzz'. Known: "),
        ("defence", "spat-papr", "unknown defence 'spat-papr'. Did you mean 'spat-paper'?"),
        ("defense", "spat", "unknown kind of component 'defense'. Did you mean 'defence'?"),
    ],
)
def test_a_typo_gets_the_nearest_name_and_the_list(kind: str, name: str, text: str) -> None:
    with pytest.raises(UserError) as caught:
        catalog.build(kind, name)
    assert str(caught.value).startswith(text)


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"setting of defence 'spat' 'scal'\. Did you mean 'scale'"):
        catalog.build("defence", "spat", scal=3)
    with pytest.raises(UserError, match=r"'attack\.step'\. Did you mean 'attack\.steps'"):
        catalog.build("defence", "spat", **{"attack.step": 3})
