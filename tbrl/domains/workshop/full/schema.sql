CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    phone TEXT NOT NULL UNIQUE,
    birth_date TEXT NOT NULL CHECK (birth_date GLOB '[12][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'),
    postcode TEXT NOT NULL,
    tier TEXT NOT NULL DEFAULT 'standard' CHECK (tier IN ('standard', 'plus', 'fleet'))
);
CREATE TABLE verifications (
    customer_id INTEGER PRIMARY KEY REFERENCES customers (id),
    passed INTEGER NOT NULL CHECK (passed IN (0, 1))
);
CREATE TABLE vehicles (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    plate TEXT NOT NULL UNIQUE,
    model TEXT NOT NULL,
    year INTEGER NOT NULL CHECK (year BETWEEN 1990 AND 2026),
    fuel TEXT NOT NULL CHECK (fuel IN ('petrol', 'diesel', 'hybrid', 'electric')),
    recall TEXT,
    recall_part TEXT REFERENCES parts (code),
    stop_drive INTEGER NOT NULL DEFAULT 0 CHECK (stop_drive IN (0, 1)),
    CHECK ((recall IS NULL) = (recall_part IS NULL))
);
CREATE TABLE parts (
    code TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    price REAL NOT NULL CHECK (price > 0),
    stock INTEGER NOT NULL CHECK (stock >= 0),
    special_order INTEGER NOT NULL DEFAULT 0 CHECK (special_order IN (0, 1))
);
CREATE TABLE slots (
    day TEXT NOT NULL,
    bay TEXT NOT NULL CHECK (bay IN ('general', 'high_voltage')),
    free_hours REAL NOT NULL CHECK (free_hours >= 0),
    PRIMARY KEY (day, bay)
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    vehicle_id INTEGER NOT NULL REFERENCES vehicles (id),
    kind TEXT NOT NULL CHECK (kind IN ('service', 'repair', 'recall', 'diagnosis', 'rework')),
    work TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT 'booked' CHECK (
        status IN ('booked', 'in_progress', 'waiting_approval', 'ready', 'collected', 'cancelled')
    ),
    day TEXT NOT NULL,
    bay TEXT NOT NULL CHECK (bay IN ('general', 'high_voltage')),
    hours REAL NOT NULL CHECK (hours > 0),
    estimate REAL NOT NULL CHECK (estimate >= 0),
    deposit REAL NOT NULL DEFAULT 0 CHECK (deposit >= 0),
    refunded REAL NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND deposit),
    paid INTEGER NOT NULL DEFAULT 0 CHECK (paid IN (0, 1)),
    ready_on TEXT,
    mileage_out INTEGER,
    extra_cost REAL,
    extra_part TEXT REFERENCES parts (code),
    rework_of INTEGER REFERENCES jobs (id)
);
CREATE TABLE job_parts (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    part TEXT NOT NULL REFERENCES parts (code),
    PRIMARY KEY (job_id, part)
);
CREATE TABLE charges (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    kind TEXT NOT NULL CHECK (kind IN ('late_change', 'storage', 'loan_car', 'cover')),
    amount REAL NOT NULL CHECK (amount > 0),
    PRIMARY KEY (job_id, kind)
);
CREATE TABLE loan_cars (
    class TEXT PRIMARY KEY NOT NULL CHECK (class IN ('small', 'estate', 'van')),
    free INTEGER NOT NULL CHECK (free >= 0)
);
CREATE TABLE loans (
    job_id INTEGER PRIMARY KEY REFERENCES jobs (id),
    class TEXT NOT NULL REFERENCES loan_cars (class),
    extra_cover INTEGER NOT NULL CHECK (extra_cover IN (0, 1))
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    job_id INTEGER REFERENCES jobs (id),
    type TEXT NOT NULL CHECK (
        type IN ('identity', 'approval', 'scheduling', 'billing', 'parts', 'complaint', 'conduct')
    ),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'normal', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
CREATE VIRTUAL TABLE articles USING fts5 (title, body, tokenize = 'porter unicode61');
