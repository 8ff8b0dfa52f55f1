"""Task templates of the supplier's customer service (full size)."""

from __future__ import annotations

from tbrl.domains.base import Template
from tbrl.domains.utility.full.bills import (
    disputed_bill,
    instalments,
    leak_allowance,
    outage_credit,
)
from tbrl.domains.utility.full.refusals import third_party, wrong_identity
from tbrl.domains.utility.full.supplies import (
    faulty_meter,
    missed_visit,
    move_out,
    switch_tariff,
)

TEMPLATES = (
    Template("disputed_bill", disputed_bill),
    Template("instalments", instalments),
    Template("switch_tariff", switch_tariff),
    Template("move_out", move_out),
    Template("outage_credit", outage_credit),
    Template("leak_allowance", leak_allowance),
    Template("faulty_meter", faulty_meter),
    Template("missed_visit", missed_visit),
    Template("wrong_identity", wrong_identity, ordinary=False),
    Template("third_party", third_party, ordinary=False),
)
