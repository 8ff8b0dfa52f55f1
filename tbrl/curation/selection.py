"""Which candidates enter training, and why the others do not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tbrl.curation.posterior import BANDS, BOUNDARIES, band_of, check_boundaries, probability_above
from tbrl.curation.probes import Probes
from tbrl.errors import ConfigError

Reason = Literal["kept", "excluded", "too_few_probes", "unsolvable", "band"]


@dataclass(frozen=True, slots=True)
class Screen:
    """Solvability by a stronger reference policy: enough clean runs, and either enough successes
    or enough posterior probability that the success rate is above `rate`."""

    min_clean: int = 1
    min_successes: int = 1
    rate: float = 0.0
    """Success rate that a solvable task should have."""
    probability: float = 0.0
    """Posterior probability of a success rate above `rate` that is enough on its own; 0 = off."""

    def passes(self, probes: Probes | None) -> bool:
        if probes is None or probes.n < self.min_clean:
            return False
        if probes.k >= self.min_successes:
            return True
        return self.probability > 0 and (
            probability_above(probes.k, probes.n, self.rate) >= self.probability
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """What is kept."""

    boundaries: tuple[float, ...] = BOUNDARIES
    keep: tuple[str, ...] = ("difficult", "intermediate", "frequently_solved")
    min_clean: int = 1
    """Fewer clean probes than this: no verdict on difficulty, not kept."""

    def __post_init__(self) -> None:
        check_boundaries(self.boundaries)
        unknown = [band for band in self.keep if band not in BANDS]
        if unknown:
            raise ConfigError(f"curation.keep: unknown band {unknown[0]!r}; of {', '.join(BANDS)}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One candidate."""

    task_ref: str
    k: int
    n: int
    errors: int
    band: str
    reason: Reason

    @property
    def kept(self) -> bool:
        return self.reason == "kept"


def select(
    tasks: Sequence[str],
    probes: Mapping[str, Probes],
    rule: Rule,
    excluded: Collection[str] = (),
    screen: Screen | None = None,
    screen_probes: Mapping[str, Probes] | None = None,
) -> list[Verdict]:
    """One verdict per task, sorted by task_ref. Reasons are tried in the order: excluded,
    unsolvable (when there is a screen), too few probes, band."""
    excluded = frozenset(excluded)
    counts = {(p.k, p.n) for p in probes.values()} | {(0, 0)}
    band_by_count = {pair: band_of(*pair, rule.boundaries) for pair in counts}
    verdicts = []
    for ref in sorted(tasks):
        found = probes.get(ref, Probes(ref, ()))
        band = band_by_count[found.k, found.n]
        reason: Reason = "kept"
        if ref in excluded:
            reason = "excluded"
        elif screen is not None and not screen.passes((screen_probes or {}).get(ref)):
            reason = "unsolvable"
        elif found.n < max(rule.min_clean, 1):
            reason = "too_few_probes"
        elif band not in rule.keep:
            reason = "band"
        verdicts.append(Verdict(ref, found.k, found.n, found.errors, band, reason))
    return verdicts
