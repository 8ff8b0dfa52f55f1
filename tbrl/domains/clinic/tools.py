"""Tools of the clinic's front desk."""

from __future__ import annotations

import json
from typing import Any, Literal

from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

OK = {"ok": True}


def _visit(world: World, visit_id: str) -> dict[str, Any]:
    row = world.one("SELECT * FROM visits WHERE id = ?", visit_id)
    if row is None:
        raise ModelError(f"no visit {visit_id}")
    return row


@tool()
def get_visit(world: World, visit_id: str) -> dict[str, Any]:
    visit = _visit(world, visit_id)
    rows = world.all("SELECT * FROM doctors WHERE name = ?", visit["doctor"])
    return {
        "hours": visit["hours"],
        "prepaid": bool(visit["prepaid"]),
        "away": bool(rows[0]["away"]),
        "video": bool(rows[0]["video"]),
    }


@tool()
def get_patient(world: World, visit_id: str) -> dict[str, Any]:
    patient_id = _visit(world, visit_id)["patient_id"]
    rows = world.all("SELECT * FROM patients WHERE id = ?", patient_id)
    return {
        "plan": rows[0]["plan"],
        "wheelchair": bool(rows[0]["wheelchair"]),
        "repeats": rows[0]["repeats"],
    }


@tool()
def check_pin(world: World, visit_id: str, pin: int) -> dict[str, Any]:
    patient_id = _visit(world, visit_id)["patient_id"]
    row = world.one("SELECT pin FROM patients WHERE id = ?", patient_id)
    return {"match": row is not None and row["pin"] == pin}


@tool(writes=True)
def charge_fee(world: World, visit_id: str, amount: float) -> dict[str, Any]:
    _visit(world, visit_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run(
        "INSERT INTO fees (id, visit_id, amount) VALUES (?, ?, ?)",
        world.next_id("fees"),
        visit_id,
        amount,
    )
    return OK


@tool(writes=True)
def cancel_visit(world: World, visit_id: str, refund: bool) -> dict[str, Any]:
    if _visit(world, visit_id)["status"] == "cancelled":
        raise ModelError("already cancelled")
    world.run(
        "UPDATE visits SET status = 'cancelled', refunded = ? WHERE id = ?", int(refund), visit_id
    )
    return OK


@tool(writes=True)
def move_visit(world: World, visit_id: str, days: int) -> dict[str, Any]:
    _visit(world, visit_id)
    if not 1 <= days <= 30:
        raise ModelError("days must be 1 to 30")
    world.run("UPDATE visits SET day = day + ? WHERE id = ?", days, visit_id)
    return OK


@tool(writes=True)
def book_room(
    world: World, visit_id: str, floor: Literal["ground", "upper"], video: bool | None = None
) -> dict[str, Any]:
    _visit(world, visit_id)
    world.run(
        "UPDATE visits SET room = ?, online = ? WHERE id = ?", floor, int(bool(video)), visit_id
    )
    return OK


@tool(writes=True)
def refill_drug(world: World, visit_id: str, months: int) -> dict[str, Any]:
    _visit(world, visit_id)
    if not 1 <= months <= 6:
        raise ModelError("months must be 1 to 6")
    world.run(
        "INSERT INTO refills (id, visit_id, months) VALUES (?, ?, ?)",
        world.next_id("refills"),
        visit_id,
        months,
    )
    return OK


@tool(writes=True)
def send_report(world: World, visit_id: str, channel: Literal["sms", "mail"]) -> dict[str, Any]:
    _visit(world, visit_id)
    world.run(
        "INSERT INTO reports (id, visit_id, channel) VALUES (?, ?, ?)",
        world.next_id("reports"),
        visit_id,
        channel,
    )
    return OK


@tool(writes=True)
def open_ticket(
    world: World,
    visit_id: str,
    type: Literal["doctor", "room", "approval", "identity"],
    priority: Literal["low", "high"],
    tags: list[Literal["pain", "drug", "video"]] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    _visit(world, visit_id)
    world.run(
        "INSERT INTO tickets (id, visit_id, type, priority, tags, note) VALUES (?, ?, ?, ?, ?, ?)",
        world.next_id("tickets"),
        visit_id,
        type,
        priority,
        json.dumps(tags or []),
        note,
    )
    return OK


TOOLS = compile_tools(globals())
