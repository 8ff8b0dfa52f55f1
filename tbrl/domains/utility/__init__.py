"""Water and power supply: readings, closings, instalments, plans, leaks, bills."""

from pathlib import Path

from tbrl.domains.base import Domain, Size
from tbrl.domains.utility.full import FULL
from tbrl.domains.utility.seed import SEED
from tbrl.domains.utility.templates import TEMPLATES
from tbrl.domains.utility.tools import TOOLS

_HERE = Path(__file__).parent

DOMAIN = Domain(
    name="utility",
    title="Water and power supplier",
    schema_sql=(_HERE / "schema.sql").read_text(),
    seed=SEED,
    sizes={
        "compact": Size(
            policy=(_HERE / "policy_compact.md").read_text().strip(),
            tools=TOOLS,
            templates=TEMPLATES,
        ),
        "full": FULL,
    },
    training=False,
    excluded_columns={"tickets": frozenset({"note"})},
    ticket_tables=frozenset({"tickets"}),
)
