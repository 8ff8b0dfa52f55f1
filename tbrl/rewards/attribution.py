"""Why an episode was scored 0: its changes against the golden ones, and one class.

differences  one RowChange per (table, key, column) whose terminal value differs:
             `before` = the golden value, `after` = the agent's;
             kind `deleted`  = missing: the golden run changed it, the agent did not
                  `inserted` = extra: only the agent changed it
                  `updated`  = wrong: both changed it, differently

class        nothing_done                      the agent changed nothing
             policy_violated_before_approval   the golden run leaves the business tables alone
                                               (refuse, escalate, ask), the agent wrote to them
             ticket_only                       business tables are right, the helpdesk is not
             business_write_wrong              anything else in the business tables
             rubric                            the state is right, the final text is not
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tbrl.types import RowChange

NOTHING_DONE = "nothing_done"
POLICY_VIOLATED = "policy_violated_before_approval"
TICKET_ONLY = "ticket_only"
BUSINESS_WRITE_WRONG = "business_write_wrong"
RUBRIC = "rubric"
CLASSES = (NOTHING_DONE, POLICY_VIOLATED, TICKET_ONLY, BUSINESS_WRITE_WRONG, RUBRIC)

Place = tuple[str, str, str]
"""Table, key, column."""


def differences(golden: Iterable[RowChange], actual: Iterable[RowChange]) -> tuple[RowChange, ...]:
    """Sorted; empty exactly when both end in the same state."""
    wanted = {_place(change): change for change in golden}
    done = {_place(change): change for change in actual}
    found = []
    for place in wanted.keys() | done.keys():
        want, did = wanted.get(place), done.get(place)
        if want is None and did is not None:
            found.append(RowChange(*place[:2], "inserted", place[2], did.before, did.after))
        elif did is None and want is not None:
            found.append(RowChange(*place[:2], "deleted", place[2], want.after, want.before))
        elif want is not None and did is not None and want.after != did.after:
            found.append(RowChange(*place[:2], "updated", place[2], want.after, did.after))
    return tuple(sorted(found))


def attribution(
    golden: Collection[RowChange],
    actual: Collection[RowChange],
    ticket_tables: Collection[str],
) -> str:
    """Class of an episode whose state is not the golden one."""
    if not actual:
        return NOTHING_DONE
    if _business(actual, ticket_tables) and not _business(golden, ticket_tables):
        return POLICY_VIOLATED
    if not _business(differences(golden, actual), ticket_tables):
        return TICKET_ONLY
    return BUSINESS_WRITE_WRONG


def _business(changes: Iterable[RowChange], ticket_tables: Collection[str]) -> bool:
    return any(change.table not in ticket_tables for change in changes)


def _place(change: RowChange) -> Place:
    return (change.table, change.key, change.column)
