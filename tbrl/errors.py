"""Errors, typed by who must act on them. Each is raised at one boundary and never swallowed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tbrl.types import FailureKind
    from tbrl.usage import Usage


class TbrlError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(TbrlError):
    """The user must act: names the key or file, the value and the remedy, on one line."""


class ModelError(TbrlError):
    """The policy must act: the message is shown to it as an observation (never a failure)."""


class BackendFailure(TbrlError):
    """Infrastructure failed (backend, user, judge, engine, deadline): the episode is re-run.

    `kind` says what failed (see `types.FailureKind`), `where` names the place
    (tool, actor, endpoint), `detail` is one line for people. `usage` are the tokens that a model
    used for nothing; None where whoever failed does not know.
    """

    def __init__(
        self, kind: "FailureKind", where: str, detail: str, usage: "Usage | None" = None
    ) -> None:
        super().__init__(f"{kind} failure in {where}: {detail}")
        self.kind: FailureKind = kind
        self.where = where
        self.detail = detail
        self.usage = usage

    def __reduce__(self) -> tuple[type, tuple["FailureKind", str, str, "Usage | None"]]:
        # The default pickles `args` (one string) and would break across an actor boundary.
        return (type(self), (self.kind, self.where, self.detail, self.usage))


class InvariantError(TbrlError):
    """We must act: a promise of the system does not hold. The run stops."""
