"""The supplier at full size: its own world of supplies, bills, outages, visits, articles."""

from pathlib import Path

from tbrl.domains.base import Size
from tbrl.domains.utility.full.seed import SEED
from tbrl.domains.utility.full.templates import TEMPLATES
from tbrl.domains.utility.full.tools import TOOLS

_HERE = Path(__file__).parent

FULL = Size(
    policy=(_HERE / "policy_full.md").read_text().strip(),
    tools=TOOLS,
    templates=TEMPLATES,
    schema_sql=(_HERE / "schema.sql").read_text(),
    seed=SEED,
)
