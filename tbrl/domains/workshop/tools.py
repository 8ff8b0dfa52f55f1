"""Tools of the car workshop."""

from __future__ import annotations

import json
from typing import Any, Literal

from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

OK = {"ok": True}


def _job(world: World, job_id: str) -> dict[str, Any]:
    row = world.one(
        "SELECT j.*, c.fuel, c.warranty, c.customer_id FROM jobs j"
        " JOIN cars c ON c.id = j.car_id WHERE j.id = ?",
        job_id,
    )
    if row is None:
        raise ModelError(f"no job {job_id}")
    return row


@tool()
def get_job(world: World, job_id: str) -> dict[str, Any]:
    row = _job(world, job_id)
    return {
        "notice": row["notice"],
        "paid": bool(row["paid"]),
        "dirty": bool(row["dirty"]),
        "warranty": bool(row["warranty"]),
        "fuel": row["fuel"],
    }


@tool()
def get_part(world: World, part: str) -> dict[str, Any]:
    row = world.one("SELECT stock FROM parts WHERE name = ?", part)
    if row is None:
        raise ModelError(f"no part {part}")
    return row


@tool()
def check_pin(world: World, job_id: str, pin: int) -> dict[str, Any]:
    row = world.one("SELECT pin FROM customers WHERE id = ?", _job(world, job_id)["customer_id"])
    return {"match": row is not None and row["pin"] == pin}


@tool(writes=True)
def charge_fee(world: World, job_id: str, amount: float) -> dict[str, Any]:
    _job(world, job_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run(
        "INSERT INTO fees (id, job_id, amount) VALUES (?, ?, ?)",
        world.next_id("fees"),
        job_id,
        amount,
    )
    return OK


@tool(writes=True)
def fit_part(world: World, job_id: str, part: str, free: bool) -> dict[str, Any]:
    _job(world, job_id)
    if not get_part(world, part)["stock"]:
        raise ModelError("no stock")
    world.run("UPDATE parts SET stock = stock - 1 WHERE name = ?", part)
    world.run(
        "INSERT INTO fitted (id, job_id, part, free) VALUES (?, ?, ?, ?)",
        world.next_id("fitted"),
        job_id,
        part,
        int(free),
    )
    return OK


@tool(writes=True)
def add_hours(
    world: World, job_id: str, hours: int, bay: Literal["main", "high"]
) -> dict[str, Any]:
    _job(world, job_id)
    if not 1 <= hours <= 40:
        raise ModelError("hours must be 1 to 40")
    world.run("UPDATE jobs SET hours = hours + ?, bay = ? WHERE id = ?", hours, bay, job_id)
    return OK


@tool(writes=True)
def hand_over(world: World, job_id: str, wash: bool) -> dict[str, Any]:
    if _job(world, job_id)["status"] == "collected":
        raise ModelError("already collected")
    world.run("UPDATE jobs SET status = 'collected', washed = ? WHERE id = ?", int(wash), job_id)
    return OK


@tool(writes=True)
def move_job(world: World, job_id: str, days: int, early: bool) -> dict[str, Any]:
    _job(world, job_id)
    if not 1 <= days <= 30:
        raise ModelError("days must be 1 to 30")
    world.run("UPDATE jobs SET day = day + ?, early = ? WHERE id = ?", days, int(early), job_id)
    return OK


@tool(writes=True)
def lend_car(world: World, job_id: str, size: Literal["small", "large"]) -> dict[str, Any]:
    _job(world, job_id)
    if world.one("SELECT id FROM loans WHERE job_id = ?", job_id):
        raise ModelError("already lent")
    world.run(
        "INSERT INTO loans (id, job_id, size) VALUES (?, ?, ?)",
        world.next_id("loans"),
        job_id,
        size,
    )
    return OK


@tool(writes=True)
def open_ticket(
    world: World,
    job_id: str,
    type: Literal["repair", "stock", "approval", "identity"],
    priority: Literal["low", "high"],
    tags: list[Literal["noise", "brakes"]] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    _job(world, job_id)
    world.run(
        "INSERT INTO tickets (id, job_id, type, priority, tags, note) VALUES (?, ?, ?, ?, ?, ?)",
        world.next_id("tickets"),
        job_id,
        type,
        priority,
        json.dumps(tags or []),
        note,
    )
    return OK


TOOLS = compile_tools(globals())
