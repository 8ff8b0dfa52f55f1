"""Equipment rental: returns, damage, extensions, fees, swaps, deliveries."""

from pathlib import Path

from tbrl.domains.base import Domain, Size
from tbrl.domains.rental.seed import SEED
from tbrl.domains.rental.templates import TEMPLATES
from tbrl.domains.rental.tools import TOOLS

_HERE = Path(__file__).parent

DOMAIN = Domain(
    name="rental",
    title="Equipment rental desk",
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
