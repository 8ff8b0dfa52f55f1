CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    pin INTEGER NOT NULL CHECK (pin BETWEEN 100 AND 999)
);
CREATE TABLE cars (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    fuel TEXT NOT NULL DEFAULT 'petrol' CHECK (fuel IN ('petrol', 'electric')),
    warranty INTEGER NOT NULL DEFAULT 0 CHECK (warranty IN (0, 1))
);
CREATE TABLE parts (
    name TEXT PRIMARY KEY,
    stock INTEGER NOT NULL CHECK (stock >= 0)
);
CREATE TABLE jobs (
    id TEXT PRIMARY KEY NOT NULL CHECK (id GLOB 'J[0-9]*'),
    car_id INTEGER NOT NULL REFERENCES cars (id),
    status TEXT NOT NULL DEFAULT 'booked' CHECK (status IN ('booked', 'collected')),
    notice INTEGER NOT NULL DEFAULT 9 CHECK (notice >= 0),
    day INTEGER NOT NULL DEFAULT 10 CHECK (day > 0),
    early INTEGER NOT NULL DEFAULT 0 CHECK (early IN (0, 1)),
    hours INTEGER NOT NULL DEFAULT 1 CHECK (hours > 0),
    bay TEXT CHECK (bay IN ('main', 'high')),
    paid INTEGER NOT NULL DEFAULT 0 CHECK (paid IN (0, 1)),
    dirty INTEGER NOT NULL DEFAULT 0 CHECK (dirty IN (0, 1)),
    washed INTEGER NOT NULL DEFAULT 0 CHECK (washed IN (0, 1))
);
CREATE TABLE fitted (
    id INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    part TEXT NOT NULL REFERENCES parts (name),
    free INTEGER NOT NULL CHECK (free IN (0, 1))
);
CREATE TABLE loans (
    id INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL UNIQUE REFERENCES jobs (id),
    size TEXT NOT NULL CHECK (size IN ('small', 'large'))
);
CREATE TABLE fees (
    id INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    amount REAL NOT NULL CHECK (amount > 0)
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    type TEXT NOT NULL CHECK (type IN ('repair', 'stock', 'approval', 'identity')),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
