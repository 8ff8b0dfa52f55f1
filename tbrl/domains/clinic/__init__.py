"""Clinic front desk: visits, refills, rooms, reports. Held out from training."""

from pathlib import Path

from tbrl.domains.base import Domain, Size
from tbrl.domains.clinic.seed import SEED
from tbrl.domains.clinic.templates import TEMPLATES
from tbrl.domains.clinic.tools import TOOLS

_HERE = Path(__file__).parent

DOMAIN = Domain(
    name="clinic",
    title="Clinic front desk",
    schema_sql=(_HERE / "schema.sql").read_text(),
    seed=SEED,
    sizes={
        "compact": Size(
            policy=(_HERE / "policy_compact.md").read_text().strip(),
            tools=TOOLS,
            templates=TEMPLATES,
        )
    },
    training=False,
    excluded_columns={"tickets": frozenset({"note"})},
    ticket_tables=frozenset({"tickets"}),
)
