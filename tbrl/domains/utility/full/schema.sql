CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    phone TEXT NOT NULL UNIQUE,
    birth_date TEXT NOT NULL CHECK (birth_date GLOB '[12][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'),
    postcode TEXT NOT NULL,
    kind TEXT NOT NULL DEFAULT 'home' CHECK (kind IN ('home', 'business')),
    priority INTEGER NOT NULL DEFAULT 0 CHECK (priority IN (0, 1)),
    authorised TEXT
);
CREATE TABLE verifications (
    customer_id INTEGER PRIMARY KEY REFERENCES customers (id),
    passed INTEGER NOT NULL CHECK (passed IN (0, 1))
);
CREATE TABLE tariffs (
    code TEXT PRIMARY KEY NOT NULL,
    supply TEXT NOT NULL CHECK (supply IN ('water', 'electricity', 'gas')),
    unit_price REAL NOT NULL CHECK (unit_price > 0),
    exit_fee REAL NOT NULL DEFAULT 0 CHECK (exit_fee >= 0),
    smart_only INTEGER NOT NULL DEFAULT 0 CHECK (smart_only IN (0, 1))
);
CREATE TABLE supplies (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    kind TEXT NOT NULL CHECK (kind IN ('water', 'electricity', 'gas')),
    address TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'closed')),
    closed_on TEXT,
    tariff TEXT NOT NULL REFERENCES tariffs (code),
    tariff_from TEXT,
    contract_until TEXT,
    meter TEXT NOT NULL CHECK (meter IN ('smart', 'manual')),
    meter_year INTEGER NOT NULL CHECK (meter_year BETWEEN 1990 AND 2026),
    balance REAL NOT NULL DEFAULT 0,
    broken_plan INTEGER NOT NULL DEFAULT 0 CHECK (broken_plan IN (0, 1)),
    instalments INTEGER CHECK (instalments BETWEEN 2 AND 12),
    first_instalment TEXT,
    usual_units INTEGER,
    last_allowance TEXT,
    CHECK ((status = 'closed') = (closed_on IS NOT NULL)),
    CHECK ((instalments IS NULL) = (first_instalment IS NULL))
);
CREATE TABLE readings (
    supply_id INTEGER NOT NULL REFERENCES supplies (id),
    day TEXT NOT NULL,
    value INTEGER NOT NULL CHECK (value >= 0),
    final INTEGER NOT NULL DEFAULT 0 CHECK (final IN (0, 1)),
    PRIMARY KEY (supply_id, day)
);
CREATE TABLE bills (
    id INTEGER PRIMARY KEY,
    supply_id INTEGER NOT NULL REFERENCES supplies (id),
    day TEXT NOT NULL,
    reading INTEGER NOT NULL,
    units INTEGER NOT NULL CHECK (units >= 0),
    estimated INTEGER NOT NULL DEFAULT 0 CHECK (estimated IN (0, 1)),
    amount REAL NOT NULL,
    status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'paid', 'on_hold', 'rebill'))
);
CREATE TABLE outages (
    id INTEGER PRIMARY KEY,
    supply_id INTEGER NOT NULL REFERENCES supplies (id),
    day TEXT NOT NULL,
    hours INTEGER NOT NULL CHECK (hours > 0),
    planned INTEGER NOT NULL CHECK (planned IN (0, 1)),
    notice_days INTEGER NOT NULL DEFAULT 0 CHECK (notice_days >= 0)
);
CREATE TABLE entries (
    supply_id INTEGER NOT NULL REFERENCES supplies (id),
    kind TEXT NOT NULL CHECK (
        kind IN (
            'exit_fee', 'meter_test', 'no_access',
            'refund', 'outage_credit', 'leak_allowance', 'missed_visit'
        )
    ),
    amount REAL NOT NULL CHECK (amount > 0),
    PRIMARY KEY (supply_id, kind)
);
CREATE TABLE visit_days (
    day TEXT NOT NULL,
    work TEXT NOT NULL CHECK (work IN ('meter_swap', 'meter_test', 'leak_check')),
    free INTEGER NOT NULL CHECK (free >= 0),
    PRIMARY KEY (day, work)
);
CREATE TABLE visits (
    id INTEGER PRIMARY KEY,
    supply_id INTEGER NOT NULL REFERENCES supplies (id),
    work TEXT NOT NULL CHECK (work IN ('meter_swap', 'meter_test', 'leak_check')),
    day TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'booked'
        CHECK (status IN ('booked', 'done', 'missed_by_us', 'no_access'))
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    supply_id INTEGER REFERENCES supplies (id),
    type TEXT NOT NULL CHECK (
        type IN ('identity', 'billing', 'debt', 'approval', 'meter', 'tariff', 'complaint')
    ),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'normal', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
CREATE VIRTUAL TABLE articles USING fts5 (title, body, tokenize = 'porter unicode61');
