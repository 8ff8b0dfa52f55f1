"""Tools of the parcel lockers."""

from __future__ import annotations

import json
from typing import Any, Literal

from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

OK = {"ok": True}


def _parcel(world: World, parcel_id: str) -> dict[str, Any]:
    row = world.one("SELECT * FROM parcels WHERE id = ?", parcel_id)
    if row is None:
        raise ModelError(f"no parcel {parcel_id}")
    return row


@tool()
def get_parcel(world: World, parcel_id: str) -> dict[str, Any]:
    row = _parcel(world, parcel_id)
    return {
        "stored": row["stored"],
        "paid": bool(row["paid"]),
        "fragile": bool(row["fragile"]),
        "insured": bool(row["insured"]),
    }


@tool()
def get_locker(world: World, parcel_id: str) -> dict[str, Any]:
    locker_id = _parcel(world, parcel_id)["locker_id"]
    rows = world.all("SELECT * FROM lockers WHERE id = ?", locker_id)
    return {
        "site": rows[0]["site"],
        "power": bool(rows[0]["power"]),
        "jammed": bool(rows[0]["jammed"]),
    }


@tool()
def check_pin(world: World, parcel_id: str, pin: int) -> dict[str, Any]:
    customer_id = _parcel(world, parcel_id)["customer_id"]
    row = world.one("SELECT pin FROM customers WHERE id = ?", customer_id)
    return {"match": row is not None and row["pin"] == pin}


@tool(writes=True)
def charge_fee(world: World, parcel_id: str, amount: float) -> dict[str, Any]:
    _parcel(world, parcel_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run(
        "INSERT INTO fees (id, parcel_id, amount) VALUES (?, ?, ?)",
        world.next_id("fees"),
        parcel_id,
        amount,
    )
    return OK


@tool(writes=True)
def send_code(world: World, parcel_id: str, channel: Literal["sms", "mail"]) -> dict[str, Any]:
    _parcel(world, parcel_id)
    world.run(
        "INSERT INTO codes (id, parcel_id, channel) VALUES (?, ?, ?)",
        world.next_id("codes"),
        parcel_id,
        channel,
    )
    return OK


@tool(writes=True)
def keep_parcel(world: World, parcel_id: str, days: int) -> dict[str, Any]:
    _parcel(world, parcel_id)
    if not 1 <= days <= 30:
        raise ModelError("days must be 1 to 30")
    world.run("UPDATE parcels SET keep = keep + ? WHERE id = ?", days, parcel_id)
    return OK


@tool(writes=True)
def return_parcel(world: World, parcel_id: str, wrap: bool) -> dict[str, Any]:
    if _parcel(world, parcel_id)["status"] == "sent_back":
        raise ModelError("already sent back")
    world.run("UPDATE parcels SET status = 'sent_back' WHERE id = ?", parcel_id)
    world.run(
        "INSERT INTO shipments (id, parcel_id, wrap) VALUES (?, ?, ?)",
        world.next_id("shipments"),
        parcel_id,
        int(wrap),
    )
    return OK


@tool(writes=True)
def move_parcel(world: World, parcel_id: str, size: Literal["small", "large"]) -> dict[str, Any]:
    _parcel(world, parcel_id)
    used = world.all("SELECT DISTINCT locker_id FROM parcels ORDER BY locker_id")
    taken = {row["locker_id"] for row in used}
    for row in world.all("SELECT id FROM lockers WHERE power = 1 AND jammed = 0 ORDER BY id"):
        if row["id"] not in taken:
            world.run(
                "UPDATE parcels SET locker_id = ?, size = ? WHERE id = ?",
                row["id"],
                size,
                parcel_id,
            )
            return OK
    raise ModelError("no free locker")


@tool(writes=True)
def reset_locker(world: World, parcel_id: str, force: bool | None = None) -> dict[str, Any]:
    locker_id = _parcel(world, parcel_id)["locker_id"]
    added = 2 if force else 1
    world.run("UPDATE lockers SET resets = resets + ? WHERE id = ?", added, locker_id)
    return OK


@tool(writes=True)
def open_ticket(
    world: World,
    parcel_id: str,
    type: Literal["repair", "claim", "payment", "approval", "identity"],
    priority: Literal["low", "high"],
    tags: list[Literal["damage", "food", "fragile"]] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    _parcel(world, parcel_id)
    world.run(
        "INSERT INTO tickets (id, parcel_id, type, priority, tags, note) VALUES (?, ?, ?, ?, ?, ?)",
        world.next_id("tickets"),
        parcel_id,
        type,
        priority,
        json.dumps(tags or []),
        note,
    )
    return OK


TOOLS = compile_tools(globals())
