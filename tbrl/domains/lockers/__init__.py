"""Parcel lockers: keeping, returning, moving parcels; doors, codes, claims."""

from pathlib import Path

from tbrl.domains.base import Domain, Size
from tbrl.domains.lockers.seed import SEED
from tbrl.domains.lockers.templates import TEMPLATES
from tbrl.domains.lockers.tools import TOOLS

_HERE = Path(__file__).parent

DOMAIN = Domain(
    name="lockers",
    title="Parcel lockers",
    schema_sql=(_HERE / "schema.sql").read_text(),
    seed=SEED,
    sizes={
        "compact": Size(
            policy=(_HERE / "policy_compact.md").read_text().strip(),
            tools=TOOLS,
            templates=TEMPLATES,
        )
    },
    training=True,
    excluded_columns={"tickets": frozenset({"note"})},
    ticket_tables=frozenset({"tickets"}),
)
