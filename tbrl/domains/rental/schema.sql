CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    tier TEXT NOT NULL CHECK (tier IN ('basic', 'gold')),
    pin INTEGER NOT NULL CHECK (pin BETWEEN 100 AND 999)
);
CREATE TABLE items (
    name TEXT PRIMARY KEY,
    stock INTEGER NOT NULL CHECK (stock >= 0),
    fragile INTEGER NOT NULL DEFAULT 0 CHECK (fragile IN (0, 1)),
    reserved INTEGER NOT NULL DEFAULT 0 CHECK (reserved IN (0, 1))
);
CREATE TABLE rentals (
    id TEXT PRIMARY KEY NOT NULL CHECK (id GLOB 'R[0-9]*'),
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    item TEXT NOT NULL REFERENCES items (name),
    status TEXT NOT NULL DEFAULT 'out' CHECK (status IN ('out', 'returned')),
    late INTEGER NOT NULL DEFAULT 0 CHECK (late >= 0),
    days INTEGER NOT NULL DEFAULT 7 CHECK (days > 0),
    deposit TEXT NOT NULL CHECK (deposit IN ('held', 'none', 'refunded')),
    insured INTEGER NOT NULL DEFAULT 0 CHECK (insured IN (0, 1)),
    fee_waived INTEGER NOT NULL DEFAULT 0 CHECK (fee_waived IN (0, 1))
);
CREATE TABLE fees (
    id INTEGER PRIMARY KEY,
    rental_id TEXT NOT NULL REFERENCES rentals (id),
    amount REAL NOT NULL CHECK (amount > 0)
);
CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY,
    rental_id TEXT NOT NULL UNIQUE REFERENCES rentals (id),
    careful INTEGER NOT NULL CHECK (careful IN (0, 1))
);
CREATE TABLE swaps (
    id INTEGER PRIMARY KEY,
    rental_id TEXT NOT NULL UNIQUE REFERENCES rentals (id),
    express INTEGER NOT NULL CHECK (express IN (0, 1))
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    rental_id TEXT NOT NULL REFERENCES rentals (id),
    type TEXT NOT NULL CHECK (type IN ('repair', 'stock', 'fee', 'approval', 'identity')),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
