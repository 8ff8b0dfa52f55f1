CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    pin INTEGER NOT NULL CHECK (pin BETWEEN 100 AND 999)
);
CREATE TABLE lockers (
    id INTEGER PRIMARY KEY,
    site TEXT NOT NULL,
    power INTEGER NOT NULL DEFAULT 1 CHECK (power IN (0, 1)),
    jammed INTEGER NOT NULL DEFAULT 0 CHECK (jammed IN (0, 1)),
    resets INTEGER NOT NULL DEFAULT 0 CHECK (resets >= 0)
);
CREATE TABLE parcels (
    id TEXT PRIMARY KEY NOT NULL CHECK (id GLOB 'P[0-9]*'),
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    locker_id INTEGER NOT NULL REFERENCES lockers (id),
    status TEXT NOT NULL DEFAULT 'stored' CHECK (status IN ('stored', 'sent_back')),
    stored INTEGER NOT NULL DEFAULT 1 CHECK (stored > 0),
    keep INTEGER NOT NULL DEFAULT 7 CHECK (keep > 0),
    size TEXT NOT NULL DEFAULT 'small' CHECK (size IN ('small', 'large')),
    paid INTEGER NOT NULL DEFAULT 1 CHECK (paid IN (0, 1)),
    fragile INTEGER NOT NULL DEFAULT 0 CHECK (fragile IN (0, 1)),
    insured INTEGER NOT NULL DEFAULT 0 CHECK (insured IN (0, 1))
);
CREATE TABLE codes (
    id INTEGER PRIMARY KEY,
    parcel_id TEXT NOT NULL REFERENCES parcels (id),
    channel TEXT NOT NULL CHECK (channel IN ('sms', 'mail'))
);
CREATE TABLE fees (
    id INTEGER PRIMARY KEY,
    parcel_id TEXT NOT NULL REFERENCES parcels (id),
    amount REAL NOT NULL CHECK (amount > 0)
);
CREATE TABLE shipments (
    id INTEGER PRIMARY KEY,
    parcel_id TEXT NOT NULL UNIQUE REFERENCES parcels (id),
    wrap INTEGER NOT NULL CHECK (wrap IN (0, 1))
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    parcel_id TEXT NOT NULL REFERENCES parcels (id),
    type TEXT NOT NULL CHECK (type IN ('repair', 'claim', 'payment', 'approval', 'identity')),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
