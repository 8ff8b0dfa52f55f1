"""The workshop at full size: its own world of bays, parts, recalls, loan cars, help articles."""

from pathlib import Path

from tbrl.domains.base import Size
from tbrl.domains.workshop.full.seed import SEED
from tbrl.domains.workshop.full.templates import TEMPLATES
from tbrl.domains.workshop.full.tools import TOOLS

_HERE = Path(__file__).parent

FULL = Size(
    policy=(_HERE / "policy_full.md").read_text().strip(),
    tools=TOOLS,
    templates=TEMPLATES,
    schema_sql=(_HERE / "schema.sql").read_text(),
    seed=SEED,
)
