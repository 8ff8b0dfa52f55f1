"""Car workshop: parts, hours, hand-over, noises, other days, loan cars."""

from pathlib import Path

from tbrl.domains.base import Domain, Size
from tbrl.domains.workshop.full import FULL
from tbrl.domains.workshop.seed import SEED
from tbrl.domains.workshop.templates import TEMPLATES
from tbrl.domains.workshop.tools import TOOLS

_HERE = Path(__file__).parent

DOMAIN = Domain(
    name="workshop",
    title="Vehicle repair workshop",
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
    training=True,
    excluded_columns={"tickets": frozenset({"note"})},
    ticket_tables=frozenset({"tickets"}),
)
