"""Task templates of the workshop's service desk (full size)."""

from __future__ import annotations

from tbrl.domains.base import Template
from tbrl.domains.workshop.full.appointments import cancel_job, move_job, recall, service
from tbrl.domains.workshop.full.refusals import changed_document, wrong_identity
from tbrl.domains.workshop.full.repairs import collect, complaint, extra_work, loan_car

TEMPLATES = (
    Template("move_job", move_job),
    Template("cancel_job", cancel_job),
    Template("extra_work", extra_work),
    Template("collect", collect),
    Template("complaint", complaint),
    Template("recall", recall),
    Template("loan_car", loan_car),
    Template("service", service),
    Template("wrong_identity", wrong_identity, ordinary=False),
    Template("changed_document", changed_document, ordinary=False),
)
