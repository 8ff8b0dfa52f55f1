CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    pin INTEGER NOT NULL CHECK (pin BETWEEN 100 AND 999),
    kind TEXT NOT NULL DEFAULT 'home' CHECK (kind IN ('home', 'shop'))
);
CREATE TABLE plans (
    name TEXT PRIMARY KEY,
    price REAL NOT NULL CHECK (price > 0)
);
CREATE TABLE accounts (
    id TEXT PRIMARY KEY NOT NULL CHECK (id GLOB 'A[0-9]*'),
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    plan TEXT NOT NULL REFERENCES plans (name),
    status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closed')),
    debt INTEGER NOT NULL DEFAULT 0 CHECK (debt >= 0),
    deposit TEXT NOT NULL DEFAULT 'none' CHECK (deposit IN ('held', 'none', 'refunded')),
    locked INTEGER NOT NULL DEFAULT 0 CHECK (locked IN (0, 1)),
    paper INTEGER NOT NULL DEFAULT 0 CHECK (paper IN (0, 1)),
    parts INTEGER CHECK (parts BETWEEN 1 AND 12)
);
CREATE TABLE meters (
    account_id TEXT PRIMARY KEY NOT NULL REFERENCES accounts (id),
    broken INTEGER NOT NULL DEFAULT 0 CHECK (broken IN (0, 1)),
    cover INTEGER NOT NULL DEFAULT 0 CHECK (cover IN (0, 1))
);
CREATE TABLE readings (
    id INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES meters (account_id),
    value REAL NOT NULL CHECK (value >= 0),
    guess INTEGER NOT NULL CHECK (guess IN (0, 1))
);
CREATE TABLE bills (
    id INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    channel TEXT NOT NULL CHECK (channel IN ('mail', 'sms'))
);
CREATE TABLE fees (
    id INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    amount REAL NOT NULL CHECK (amount > 0)
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    type TEXT NOT NULL
        CHECK (type IN ('meter', 'plan', 'debt', 'supply', 'approval', 'identity')),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
