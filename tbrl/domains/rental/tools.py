"""Tools of the rental desk."""

from __future__ import annotations

import json
from typing import Any, Literal

from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

OK = {"ok": True}


def _rental(world: World, rental_id: str) -> dict[str, Any]:
    row = world.one("SELECT * FROM rentals WHERE id = ?", rental_id)
    if row is None:
        raise ModelError(f"no rental {rental_id}")
    return row


@tool()
def get_rental(world: World, rental_id: str) -> dict[str, Any]:
    row = world.one(
        "SELECT r.*, c.tier FROM rentals r JOIN customers c ON c.id = r.customer_id WHERE r.id = ?",
        rental_id,
    )
    if row is None:
        raise ModelError(f"no rental {rental_id}")
    return {
        "late": row["late"],
        "deposit": row["deposit"],
        "insured": bool(row["insured"]),
        "tier": row["tier"],
    }


@tool()
def get_item(world: World, item: str) -> dict[str, Any]:
    row = world.one("SELECT * FROM items WHERE name = ?", item)
    if row is None:
        raise ModelError(f"no item {item}")
    return {
        "stock": row["stock"],
        "fragile": bool(row["fragile"]),
        "reserved": bool(row["reserved"]),
    }


@tool()
def check_pin(world: World, rental_id: str, pin: int) -> dict[str, Any]:
    customer_id = _rental(world, rental_id)["customer_id"]
    row = world.one("SELECT pin FROM customers WHERE id = ?", customer_id)
    return {"match": row is not None and row["pin"] == pin}


@tool(writes=True)
def charge_fee(world: World, rental_id: str, amount: float) -> dict[str, Any]:
    _rental(world, rental_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run(
        "INSERT INTO fees (id, rental_id, amount) VALUES (?, ?, ?)",
        world.next_id("fees"),
        rental_id,
        amount,
    )
    return OK


@tool(writes=True)
def waive_fee(world: World, rental_id: str) -> dict[str, Any]:
    _rental(world, rental_id)
    world.run("UPDATE rentals SET fee_waived = 1 WHERE id = ?", rental_id)
    return OK


@tool(writes=True)
def return_item(world: World, rental_id: str, refund: bool) -> dict[str, Any]:
    row = _rental(world, rental_id)
    if row["status"] == "returned":
        raise ModelError("already returned")
    deposit = "refunded" if refund else row["deposit"]
    world.run(
        "UPDATE rentals SET status = 'returned', deposit = ? WHERE id = ?", deposit, rental_id
    )
    return OK


@tool(writes=True)
def extend_rental(world: World, rental_id: str, days: int) -> dict[str, Any]:
    _rental(world, rental_id)
    if not 1 <= days <= 30:
        raise ModelError("days must be 1 to 30")
    world.run("UPDATE rentals SET days = days + ? WHERE id = ?", days, rental_id)
    return OK


@tool(writes=True)
def swap_item(world: World, rental_id: str, express: bool) -> dict[str, Any]:
    _rental(world, rental_id)
    if world.one("SELECT id FROM swaps WHERE rental_id = ?", rental_id):
        raise ModelError("already swapped")
    world.run(
        "INSERT INTO swaps (id, rental_id, express) VALUES (?, ?, ?)",
        world.next_id("swaps"),
        rental_id,
        int(express),
    )
    return OK


@tool(writes=True)
def send_item(world: World, rental_id: str, careful: bool) -> dict[str, Any]:
    _rental(world, rental_id)
    if world.one("SELECT id FROM deliveries WHERE rental_id = ?", rental_id):
        raise ModelError("already sent")
    world.run(
        "INSERT INTO deliveries (id, rental_id, careful) VALUES (?, ?, ?)",
        world.next_id("deliveries"),
        rental_id,
        int(careful),
    )
    return OK


@tool(writes=True)
def open_ticket(
    world: World,
    rental_id: str,
    type: Literal["repair", "stock", "fee", "approval", "identity"],
    priority: Literal["low", "high"],
    tags: list[Literal["damage", "fragile", "gold"]] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    _rental(world, rental_id)
    world.run(
        "INSERT INTO tickets (id, rental_id, type, priority, tags, note) VALUES (?, ?, ?, ?, ?, ?)",
        world.next_id("tickets"),
        rental_id,
        type,
        priority,
        json.dumps(tags or []),
        note,
    )
    return OK


TOOLS = compile_tools(globals())
