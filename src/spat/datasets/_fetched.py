"""What the published data sets share: a data folder, fetching into it, and verifying it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spat.datasets._base import Report, unheard
from spat.datasets._files import data_root
from spat.datasets._published import Published, Source


@dataclass(frozen=True)
class Fetched:
    """A data set whose files are published and checked against known MD5s.

    root: the data folder; without it $SPAT_DATA, else `spat` in the user's cache folder
    """

    root: str | None = None
    published: ClassVar[Published]
    sources: ClassVar[tuple[Source, ...]]

    @property
    def folder(self) -> Path:
        return data_root(self.root)

    def fetch(
        self, *, sources: Sequence[Source] | None = None, progress: Report | None = None
    ) -> Path:
        """Bring the files that the data folder lacks from the first source that has them."""
        chosen = self.sources if sources is None else sources
        return self.published.fetch(self.folder, chosen, progress or unheard)

    def verify(self) -> list[tuple[str, str]]:
        """Each file with `ok`, `missing` or what is wrong with it."""
        return self.published.verify(self.folder)
