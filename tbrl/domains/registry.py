"""Every business domain of the package: each folder beside this file that defines DOMAIN.

Adding a domain is adding a folder; nothing is listed by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import tbrl.domains
from tbrl.domains.base import Domain
from tbrl.errors import ConfigError


@cache
def all_domains() -> tuple[Domain, ...]:
    """All domains, sorted by name. Raises ConfigError when a folder defines no DOMAIN."""
    found = []
    for module in pkgutil.iter_modules(tbrl.domains.__path__):
        if not module.ispkg:
            continue
        package = importlib.import_module(f"tbrl.domains.{module.name}")
        domain = getattr(package, "DOMAIN", None)
        if not isinstance(domain, Domain) or domain.name != module.name:
            raise ConfigError(
                f"tbrl/domains/{module.name}: __init__.py must define DOMAIN, a Domain named"
                f" {module.name!r}"
            )
        found.append(domain)
    return tuple(sorted(found, key=lambda d: d.name))


def domain_of(name: str) -> Domain:
    """One domain. Raises ConfigError naming those that exist."""
    for domain in all_domains():
        if domain.name == name:
            return domain
    known = ", ".join(d.name for d in all_domains())
    raise ConfigError(f"domain {name!r} does not exist; domains: {known}")


def training_domains() -> tuple[Domain, ...]:
    """Domains whose tasks may enter training."""
    return tuple(d for d in all_domains() if d.training)


def heldout_domains() -> tuple[Domain, ...]:
    """Domains that only evaluation may use."""
    return tuple(d for d in all_domains() if not d.training)
