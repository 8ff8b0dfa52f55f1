"""Tools of the water and power desk."""

from __future__ import annotations

import json
from typing import Any, Literal

from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

OK = {"ok": True}


def _account(world: World, account_id: str) -> dict[str, Any]:
    row = world.one(
        "SELECT a.*, c.kind, c.pin FROM accounts a"
        " JOIN customers c ON c.id = a.customer_id WHERE a.id = ?",
        account_id,
    )
    if row is None:
        raise ModelError(f"no account {account_id}")
    return row


@tool()
def get_account(world: World, account_id: str) -> dict[str, Any]:
    row = _account(world, account_id)
    return {
        "debt": row["debt"],
        "deposit": row["deposit"],
        "kind": row["kind"],
        "locked": bool(row["locked"]),
        "paper": bool(row["paper"]),
    }


@tool()
def get_meter(world: World, account_id: str) -> dict[str, Any]:
    row = world.one("SELECT * FROM meters WHERE account_id = ?", account_id)
    if row is None:
        raise ModelError(f"no account {account_id}")
    return {"broken": bool(row["broken"]), "cover": bool(row["cover"])}


@tool()
def check_pin(world: World, account_id: str, pin: int) -> dict[str, Any]:
    return {"match": _account(world, account_id)["pin"] == pin}


@tool(writes=True)
def charge_fee(world: World, account_id: str, amount: float) -> dict[str, Any]:
    _account(world, account_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run(
        "INSERT INTO fees (id, account_id, amount) VALUES (?, ?, ?)",
        world.next_id("fees"),
        account_id,
        amount,
    )
    return OK


@tool(writes=True)
def add_reading(world: World, account_id: str, value: float, guess: bool) -> dict[str, Any]:
    get_meter(world, account_id)
    if value < 0:
        raise ModelError("value must be 0 or more")
    world.run(
        "INSERT INTO readings (id, account_id, value, guess) VALUES (?, ?, ?, ?)",
        world.next_id("readings"),
        account_id,
        value,
        int(guess),
    )
    return OK


@tool(writes=True)
def close_account(world: World, account_id: str, refund: bool) -> dict[str, Any]:
    row = _account(world, account_id)
    if row["status"] == "closed":
        raise ModelError("already closed")
    deposit = "refunded" if refund else row["deposit"]
    world.run(
        "UPDATE accounts SET status = 'closed', deposit = ? WHERE id = ?", deposit, account_id
    )
    return OK


@tool(writes=True)
def pay_parts(world: World, account_id: str, parts: int) -> dict[str, Any]:
    _account(world, account_id)
    if not 1 <= parts <= 12:
        raise ModelError("parts must be 1 to 12")
    world.run("UPDATE accounts SET parts = ? WHERE id = ?", parts, account_id)
    return OK


@tool(writes=True)
def switch_plan(world: World, account_id: str, plan: str) -> dict[str, Any]:
    _account(world, account_id)
    if world.one("SELECT name FROM plans WHERE name = ?", plan) is None:
        raise ModelError(f"no plan {plan}")
    world.run("UPDATE accounts SET plan = ? WHERE id = ?", plan, account_id)
    return OK


@tool(writes=True)
def send_bill(world: World, account_id: str, channel: Literal["mail", "sms"]) -> dict[str, Any]:
    _account(world, account_id)
    world.run(
        "INSERT INTO bills (id, account_id, channel) VALUES (?, ?, ?)",
        world.next_id("bills"),
        account_id,
        channel,
    )
    return OK


@tool(writes=True)
def open_ticket(
    world: World,
    account_id: str,
    type: Literal["meter", "plan", "debt", "supply", "approval", "identity"],
    priority: Literal["low", "high"],
    tags: list[Literal["leak", "shop"]] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    _account(world, account_id)
    world.run(
        "INSERT INTO tickets (id, account_id, type, priority, tags, note)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        world.next_id("tickets"),
        account_id,
        type,
        priority,
        json.dumps(tags or []),
        note,
    )
    return OK


TOOLS = compile_tools(globals())
