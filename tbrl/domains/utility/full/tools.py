"""Tools of the supplier's customer service (full size)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from tbrl.domains import desk
from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

Work = Literal["meter_swap", "meter_test", "leak_check"]


def _supply(world: World, supply_id: int) -> dict[str, Any]:
    row = world.one("SELECT * FROM supplies WHERE id = ?", supply_id)
    if row is None:
        raise ModelError(f"no supply {supply_id}")
    return row


def _active(world: World, supply_id: int) -> dict[str, Any]:
    row = _supply(world, supply_id)
    if row["status"] == "closed":
        raise ModelError("the supply is closed")
    return row


@tool()
def search_help(
    world: World,
    query: Annotated[str, "words to look for"],
    limit: Annotated[int, "how many articles, 1 to 5"] = 3,
) -> Any:
    """Search the help articles (rates, formulas, how things work)."""
    return desk.search_articles(world, query, limit)


@tool()
def find_customer(
    world: World,
    name: Annotated[str, "full name of the account holder"],
    phone: Annotated[str | None, "narrows the search to this phone number"] = None,
) -> Any:
    """Find customers by name. Several customers can have the same name."""
    rows = world.all("SELECT * FROM customers WHERE name = ? COLLATE NOCASE ORDER BY id", name)
    return [
        {"customer_id": row["id"], "name": row["name"]}
        for row in rows
        if phone is None or desk.same_phone(phone, row["phone"])
    ]


@tool(writes=True)
def verify_identity(
    world: World,
    customer_id: int,
    birth_date: Annotated[str, "YYYY-MM-DD, as the customer told it"],
    postcode: Annotated[str, "as the customer told it"],
) -> Any:
    """Check date of birth and postcode against the file. The result is recorded."""
    return {"verified": desk.verify(world, customer_id, birth_date, postcode)}


@tool()
def get_customer(world: World, customer_id: int) -> Any:
    """Kind of customer, priority register, authorised person, and all supplies."""
    row = desk.customer_of(world, customer_id)
    return {
        "customer_id": customer_id,
        "name": row["name"],
        "kind": row["kind"],
        "priority_register": bool(row["priority"]),
        "authorised": row["authorised"],
        "supplies": world.all(
            "SELECT id AS supply_id, kind, address, status FROM supplies WHERE customer_id = ?"
            " ORDER BY id",
            customer_id,
        ),
    }


@tool()
def get_supply(world: World, supply_id: int) -> Any:
    """All about one supply: meter, tariff, contract, balance, bills, outages, visits, entries."""
    row = _supply(world, supply_id)
    shown = {name: value for name, value in row.items() if value is not None and name != "id"}
    bills = world.all(
        "SELECT id AS bill_id, day, reading, units, estimated, amount, status FROM bills"
        " WHERE supply_id = ? ORDER BY id",
        supply_id,
    )
    outages = world.all(
        "SELECT day, hours, planned, notice_days FROM outages WHERE supply_id = ? ORDER BY id",
        supply_id,
    )
    return {
        "supply_id": supply_id,
        **shown,
        "broken_plan": bool(row["broken_plan"]),
        "bills": [{**bill, "estimated": bool(bill["estimated"])} for bill in bills],
        "outages": [{**outage, "planned": bool(outage["planned"])} for outage in outages],
        "visits": world.all(
            "SELECT work, day, status FROM visits WHERE supply_id = ? ORDER BY id", supply_id
        ),
        "entries": world.all(
            "SELECT kind, amount FROM entries WHERE supply_id = ? ORDER BY kind", supply_id
        ),
    }


@tool()
def get_tariffs(world: World, supply: Literal["water", "electricity", "gas"]) -> Any:
    """Tariffs for one kind of supply: unit price, exit fee, smart meters only or not."""
    rows = world.all(
        "SELECT code, unit_price, exit_fee, smart_only FROM tariffs WHERE supply = ? ORDER BY code",
        supply,
    )
    return [{**row, "smart_only": bool(row["smart_only"])} for row in rows]


@tool()
def find_visit_days(
    world: World, work: Work, from_day: Annotated[str, "YYYY-MM-DD, first day to look at"]
) -> Any:
    """Days with a free visit for this work, in order, at most five."""
    return world.all(
        "SELECT day, free FROM visit_days WHERE work = ? AND day >= ? AND free > 0"
        " ORDER BY day LIMIT 5",
        work,
        from_day,
    )


@tool(writes=True)
def submit_reading(world: World, supply_id: int, value: int) -> Any:
    """Record what the meter shows today."""
    _active(world, supply_id)
    _record(world, supply_id, world.now[:10], value, final=False)
    return {"ok": True}


@tool(writes=True)
def change_bill(world: World, bill_id: int, status: Literal["open", "on_hold", "rebill"]) -> Any:
    """Change the status of a bill: on_hold while colleagues check it, rebill to have it redone."""
    if not world.run("UPDATE bills SET status = ? WHERE id = ?", status, bill_id):
        raise ModelError(f"no bill {bill_id}")
    return {"ok": True}


@tool(writes=True)
def add_entry(
    world: World,
    supply_id: int,
    kind: Literal[
        "exit_fee",
        "meter_test",
        "no_access",
        "refund",
        "outage_credit",
        "leak_allowance",
        "missed_visit",
    ],
    amount: Annotated[float, "euros, always positive"],
) -> Any:
    """Charge a fee or give a credit, once of each kind. The kind says which it is."""
    _supply(world, supply_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run(
        "INSERT INTO entries (supply_id, kind, amount) VALUES (?, ?, ?)", supply_id, kind, amount
    )
    return {"ok": True}


@tool(writes=True)
def set_instalments(
    world: World,
    supply_id: int,
    count: Annotated[int, "monthly instalments, 2 to 12"],
    first_day: Literal["2026-03-15", "2026-04-01"],
) -> Any:
    """Split the balance of a supply into monthly instalments."""
    if _active(world, supply_id)["balance"] <= 0:
        raise ModelError("there is no balance to pay")
    if not 2 <= count <= 12:
        raise ModelError("count must be 2 to 12")
    world.run(
        "UPDATE supplies SET instalments = ?, first_instalment = ? WHERE id = ?",
        count,
        first_day,
        supply_id,
    )
    return {"ok": True}


@tool(writes=True)
def switch_tariff(
    world: World, supply_id: int, tariff: str, from_day: Annotated[str, "YYYY-MM-DD"]
) -> Any:
    """Put a supply on another tariff."""
    supply = _active(world, supply_id)
    row = world.one("SELECT * FROM tariffs WHERE code = ?", tariff)
    if row is None or row["supply"] != supply["kind"]:
        raise ModelError(f"no tariff {tariff} for {supply['kind']}")
    if row["smart_only"] and supply["meter"] != "smart":
        raise ModelError(f"tariff {tariff} needs a smart meter")
    world.run(
        "UPDATE supplies SET tariff = ?, tariff_from = ? WHERE id = ?", tariff, from_day, supply_id
    )
    return {"ok": True}


@tool(writes=True)
def book_visit(world: World, supply_id: int, work: Work, day: Annotated[str, "YYYY-MM-DD"]) -> Any:
    """Book an engineer's visit."""
    _active(world, supply_id)
    taken = "UPDATE visit_days SET free = free - 1 WHERE day = ? AND work = ? AND free > 0"
    if not world.run(taken, day, work):
        raise ModelError(f"no {work} visit is free on {day}")
    visit_id = world.next_id("visits")
    world.run(
        "INSERT INTO visits (id, supply_id, work, day) VALUES (?, ?, ?, ?)",
        visit_id,
        supply_id,
        work,
        day,
    )
    return {"visit_id": visit_id}


@tool(writes=True)
def close_supply(
    world: World,
    supply_id: int,
    day: Annotated[str, "YYYY-MM-DD"],
    final_reading: Annotated[int | None, "for manual meters"] = None,
) -> Any:
    """Close a supply because the customer moves out."""
    _active(world, supply_id)
    world.run("UPDATE supplies SET status = 'closed', closed_on = ? WHERE id = ?", day, supply_id)
    if final_reading is not None:
        _record(world, supply_id, day, final_reading, final=True)
    return {"ok": True}


@tool(writes=True)
def open_ticket(
    world: World,
    customer_id: int,
    type: Literal["identity", "billing", "debt", "approval", "meter", "tariff", "complaint"],
    priority: Literal["low", "normal", "high"],
    tags: list[
        Literal[
            "wrong_data",
            "third_party",
            "meter_test",
            "large_gap",
            "business",
            "second_plan",
            "long_plan",
            "after_swap",
            "final_bill",
            "long_outage",
            "second_leak",
            "large_allowance",
            "danger",
            "declined",
        ]
    ],
    supply_id: Annotated[int | None, "the supply that the case is about"] = None,
    note: Annotated[str | None, "free text for colleagues"] = None,
) -> Any:
    """Hand the case to colleagues."""
    desk.customer_of(world, customer_id)
    if supply_id is not None:
        _supply(world, supply_id)
    ticket_id = world.next_id("tickets")
    world.run(
        "INSERT INTO tickets (id, customer_id, supply_id, type, priority, tags, note)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        ticket_id,
        customer_id,
        supply_id,
        type,
        priority,
        json.dumps(sorted(set(tags))),
        note,
    )
    return {"ticket_id": ticket_id}


def _record(world: World, supply_id: int, day: str, value: int, final: bool) -> None:
    if value < 0:
        raise ModelError("a reading is 0 or more")
    world.run(
        "INSERT INTO readings (supply_id, day, value, final) VALUES (?, ?, ?, ?)",
        supply_id,
        day,
        value,
        int(final),
    )


TOOLS = compile_tools(globals())
