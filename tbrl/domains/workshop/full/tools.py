"""Tools of the workshop's service desk (full size)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from tbrl.domains import desk
from tbrl.domains.base import World, compile_tools, tool
from tbrl.errors import ModelError

Bay = Literal["general", "high_voltage"]
Kind = Literal["service", "repair", "recall", "diagnosis", "rework"]


def _job(world: World, job_id: int) -> dict[str, Any]:
    row = world.one("SELECT * FROM jobs WHERE id = ?", job_id)
    if row is None:
        raise ModelError(f"no job {job_id}")
    return row


def _take_hours(world: World, day: str, bay: str, hours: float) -> None:
    slot = world.one("SELECT free_hours FROM slots WHERE day = ? AND bay = ?", day, bay)
    if slot is None:
        raise ModelError(f"the workshop is closed on {day}, or the day is not open for booking")
    if slot["free_hours"] < hours:
        raise ModelError(f"bay {bay} has only {slot['free_hours']:g} hours free on {day}")
    _add_hours(world, day, bay, -hours)


def _add_hours(world: World, day: str, bay: str, hours: float) -> None:
    world.run(
        "UPDATE slots SET free_hours = free_hours + ? WHERE day = ? AND bay = ?", hours, day, bay
    )


def _age(birth_date: str, now: str) -> int:
    """Full years."""
    return int(now[:4]) - int(birth_date[:4]) - (now[5:10] < birth_date[5:])


@tool()
def search_help(
    world: World,
    query: Annotated[str, "words to look for"],
    limit: Annotated[int, "how many articles, 1 to 5"] = 3,
) -> Any:
    """Search the help articles (prices, loan car classes, how things work)."""
    return desk.search_articles(world, query, limit)


@tool()
def find_customer(
    world: World,
    name: Annotated[str, "full name"],
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
    """Age, tier and vehicles of a customer, with open recalls and the jobs of each vehicle."""
    customer = desk.customer_of(world, customer_id)
    vehicles = world.all("SELECT * FROM vehicles WHERE customer_id = ? ORDER BY id", customer_id)
    return {
        "customer_id": customer_id,
        "name": customer["name"],
        "age": _age(customer["birth_date"], world.now),
        "tier": customer["tier"],
        "vehicles": [
            {
                "vehicle_id": row["id"],
                "plate": row["plate"],
                "model": row["model"],
                "year": row["year"],
                "fuel": row["fuel"],
                "recall": row["recall"],
                "recall_part": row["recall_part"],
                "stop_drive": bool(row["stop_drive"]),
                "jobs": world.all(
                    "SELECT id AS job_id, kind, work, status, day FROM jobs WHERE vehicle_id = ?"
                    " ORDER BY id",
                    row["id"],
                ),
            }
            for row in vehicles
        ],
    }


@tool()
def get_job(world: World, job_id: int) -> Any:
    """All about one job: status, day, bay, estimate, deposit, parts, charges."""
    row = _job(world, job_id)
    parts = world.all(
        "SELECT p.code, p.name, p.special_order FROM job_parts j"
        " JOIN parts p ON p.code = j.part WHERE j.job_id = ? ORDER BY p.code",
        job_id,
    )
    charges = world.all("SELECT kind, amount FROM charges WHERE job_id = ? ORDER BY kind", job_id)
    shown = {name: value for name, value in row.items() if value is not None and name != "id"}
    return {
        "job_id": job_id,
        **shown,
        "paid": bool(row["paid"]),
        "parts": [{**part, "special_order": bool(part["special_order"])} for part in parts],
        "charges": charges,
    }


@tool()
def get_parts(world: World, codes: Annotated[list[str], "part codes, e.g. OF-1"]) -> Any:
    """Name, price and stock of parts."""
    marks = ", ".join("?" * len(codes))
    rows = world.all(
        f"SELECT code, name, price, stock, special_order FROM parts WHERE code IN ({marks})"
        " ORDER BY code",
        *codes,
    )
    missing = sorted(set(codes) - {row["code"] for row in rows})
    if missing:
        raise ModelError(f"no part {', '.join(missing)}")
    return [{**row, "special_order": bool(row["special_order"])} for row in rows]


@tool()
def find_slots(
    world: World,
    bay: Bay,
    from_day: Annotated[str, "YYYY-MM-DD, first day to look at"],
    hours: Annotated[float, "only days with at least so many free hours"] = 0.5,
) -> Any:
    """Days with free hours in a bay, in order, at most ten."""
    return world.all(
        "SELECT day, free_hours FROM slots WHERE bay = ? AND day >= ? AND free_hours >= ?"
        " ORDER BY day LIMIT 10",
        bay,
        from_day,
        hours,
    )


@tool(writes=True)
def book_job(
    world: World,
    vehicle_id: int,
    kind: Kind,
    day: Annotated[str, "YYYY-MM-DD"],
    bay: Bay,
    hours: float,
    estimate: Annotated[float, "euros"],
    rework_of: Annotated[int | None, "the old job, for a rework"] = None,
) -> Any:
    """Book a new job and take its hours from the bay."""
    if world.one("SELECT id FROM vehicles WHERE id = ?", vehicle_id) is None:
        raise ModelError(f"no vehicle {vehicle_id}")
    if not hours > 0 or estimate < 0:
        raise ModelError("hours must be above 0, estimate 0 or more")
    if rework_of is not None:
        _job(world, rework_of)
    _take_hours(world, day, bay, hours)
    job_id = world.next_id("jobs")
    world.run(
        "INSERT INTO jobs (id, vehicle_id, kind, day, bay, hours, estimate, rework_of)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        job_id,
        vehicle_id,
        kind,
        day,
        bay,
        hours,
        estimate,
        rework_of,
    )
    return {"job_id": job_id}


@tool(writes=True)
def change_job(
    world: World,
    job_id: int,
    status: Literal["booked", "in_progress", "collected", "cancelled"] | None = None,
    day: Annotated[str | None, "YYYY-MM-DD: moves the job's hours to another day"] = None,
    estimate: Annotated[float | None, "new estimate in euros"] = None,
) -> Any:
    """Change status, day or estimate of a job. Cancelling gives its hours back to the bay."""
    job = _job(world, job_id)
    if status is None and day is None and estimate is None:
        raise ModelError("give status, day or estimate")
    if estimate is not None and estimate < 0:
        raise ModelError("estimate must be 0 or more")
    if (day is not None or status == "cancelled") and job["status"] != "booked":
        raise ModelError(f"the job is {job['status']}: only a booked job can be moved or cancelled")
    if day is not None:
        _add_hours(world, job["day"], job["bay"], job["hours"])
        _take_hours(world, day, job["bay"], job["hours"])
    if status == "cancelled":
        _add_hours(world, day or job["day"], job["bay"], job["hours"])
    world.run(
        "UPDATE jobs SET status = ?, day = ?, estimate = ? WHERE id = ?",
        status or job["status"],
        day or job["day"],
        job["estimate"] if estimate is None else estimate,
        job_id,
    )
    return {"ok": True}


@tool(writes=True)
def reserve_parts(world: World, job_id: int, codes: list[str]) -> Any:
    """Take parts from stock for a job."""
    _job(world, job_id)
    get_parts(world, codes)
    for code in dict.fromkeys(codes):
        if not world.run("UPDATE parts SET stock = stock - 1 WHERE code = ? AND stock > 0", code):
            raise ModelError(f"part {code} is not in stock; nothing was reserved")
        world.run("INSERT INTO job_parts (job_id, part) VALUES (?, ?)", job_id, code)
    return {"ok": True}


@tool(writes=True)
def add_charge(
    world: World,
    job_id: int,
    kind: Literal["late_change", "storage", "loan_car", "cover"],
    amount: Annotated[float, "euros"],
) -> Any:
    """Charge a fee to a job."""
    _job(world, job_id)
    if not amount > 0:
        raise ModelError("amount must be above 0")
    world.run("INSERT INTO charges (job_id, kind, amount) VALUES (?, ?, ?)", job_id, kind, amount)
    return {"ok": True}


@tool(writes=True)
def refund_deposit(world: World, job_id: int, amount: Annotated[float, "euros"]) -> Any:
    """Pay back all or part of a job's deposit."""
    job = _job(world, job_id)
    left = job["deposit"] - job["refunded"]
    if not 0 < amount <= left:
        raise ModelError(f"amount must be above 0 and at most {left:g}")
    world.run("UPDATE jobs SET refunded = refunded + ? WHERE id = ?", amount, job_id)
    return {"ok": True}


@tool(writes=True)
def lend_car(
    world: World,
    job_id: int,
    car_class: Literal["small", "estate", "van"],
    extra_cover: Annotated[bool, "insurance cover for young drivers"],
) -> Any:
    """Lend a car for the time of a job."""
    _job(world, job_id)
    if not world.run(
        "UPDATE loan_cars SET free = free - 1 WHERE class = ? AND free > 0", car_class
    ):
        raise ModelError(f"no {car_class} car is free")
    world.run(
        "INSERT INTO loans (job_id, class, extra_cover) VALUES (?, ?, ?)",
        job_id,
        car_class,
        int(extra_cover),
    )
    return {"ok": True}


@tool()
def get_loan_cars(world: World) -> Any:
    """How many loan cars of each class are free."""
    return world.all("SELECT class, free FROM loan_cars ORDER BY class")


@tool(writes=True)
def open_ticket(
    world: World,
    customer_id: int,
    type: Literal["identity", "approval", "scheduling", "billing", "parts", "complaint", "conduct"],
    priority: Literal["low", "normal", "high"],
    tags: list[
        Literal[
            "wrong_data",
            "full_day",
            "special_order",
            "extra_work",
            "signature",
            "fleet",
            "unpaid",
            "rework",
            "unsafe",
            "fee_declined",
            "recall",
            "stop_drive",
            "oil_filter",
            "loan_car",
            "document",
        ]
    ],
    job_id: Annotated[int | None, "the job that the case is about"] = None,
    note: Annotated[str | None, "free text for colleagues"] = None,
) -> Any:
    """Hand the case to colleagues."""
    desk.customer_of(world, customer_id)
    if job_id is not None:
        _job(world, job_id)
    ticket_id = world.next_id("tickets")
    world.run(
        "INSERT INTO tickets (id, customer_id, job_id, type, priority, tags, note)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        ticket_id,
        customer_id,
        job_id,
        type,
        priority,
        json.dumps(sorted(set(tags))),
        note,
    )
    return {"ticket_id": ticket_id}


TOOLS = compile_tools(globals())
