"""Entity names and record ids by split: disjoint, so that a held-out task holds neither a name nor
an id that training saw. Short, common words: a small tokenizer holds each as one token."""

from __future__ import annotations

from tbrl.domains.base import Names
from tbrl.errors import ConfigError

_WARMSTART = Names(
    split="warmstart",
    first=("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jon", "Kira",
           "Leo"),
    last=("Adler", "Bauer", "Cole", "Dietz", "Ellis", "Frey", "Grant", "Hale", "Irwin", "Jansen",
          "Keller", "Lind"),
    ids=(100, 400),
)  # fmt: skip
_CANDIDATE = Names(
    split="candidate",
    first=("Mara", "Nils", "Olga", "Paul", "Quinn", "Rosa", "Sven", "Tara", "Umar", "Vera"),
    last=("Moss", "Novak", "Olsen", "Perez", "Quist", "Reed", "Stone", "Tran", "Ueda", "Vogel"),
    ids=(400, 700),
)
_HELDOUT = Names(
    split="heldout",
    first=("Wanda", "Xena", "Yuri", "Zoe", "Amir", "Bella", "Carl", "Dora"),
    last=("Weber", "Xu", "Young", "Ziegler", "Amato", "Brandt", "Cruz", "Doyle"),
    ids=(700, 1000),
)
SPLITS = ("warmstart", "candidate", "heldout")


def names_of(split: str) -> Names:
    """Names of `warmstart` (demonstrations), `candidate` (training pool) or `heldout`
    (evaluation). Raises ConfigError for another split."""
    for names in (_WARMSTART, _CANDIDATE, _HELDOUT):
        if names.split == split:
            return names
    raise ConfigError(f"split={split!r}: there are names for {', '.join(SPLITS)} only")
