CREATE TABLE patients (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    pin INTEGER NOT NULL CHECK (pin BETWEEN 100 AND 999),
    plan TEXT NOT NULL DEFAULT 'public' CHECK (plan IN ('public', 'private')),
    wheelchair INTEGER NOT NULL DEFAULT 0 CHECK (wheelchair IN (0, 1)),
    repeats INTEGER NOT NULL DEFAULT 0 CHECK (repeats >= 0)
);
CREATE TABLE doctors (
    name TEXT PRIMARY KEY,
    away INTEGER NOT NULL DEFAULT 0 CHECK (away IN (0, 1)),
    video INTEGER NOT NULL DEFAULT 0 CHECK (video IN (0, 1))
);
CREATE TABLE visits (
    id TEXT PRIMARY KEY NOT NULL CHECK (id GLOB 'V[0-9]*'),
    patient_id INTEGER NOT NULL REFERENCES patients (id),
    doctor TEXT NOT NULL REFERENCES doctors (name),
    status TEXT NOT NULL DEFAULT 'booked' CHECK (status IN ('booked', 'cancelled')),
    hours INTEGER NOT NULL CHECK (hours >= 0),
    day INTEGER NOT NULL DEFAULT 10 CHECK (day > 0),
    prepaid INTEGER NOT NULL DEFAULT 0 CHECK (prepaid IN (0, 1)),
    refunded INTEGER NOT NULL DEFAULT 0 CHECK (refunded IN (0, 1)),
    room TEXT CHECK (room IN ('ground', 'upper')),
    online INTEGER NOT NULL DEFAULT 0 CHECK (online IN (0, 1))
);
CREATE TABLE refills (
    id INTEGER PRIMARY KEY,
    visit_id TEXT NOT NULL REFERENCES visits (id),
    months INTEGER NOT NULL CHECK (months BETWEEN 1 AND 6)
);
CREATE TABLE reports (
    id INTEGER PRIMARY KEY,
    visit_id TEXT NOT NULL REFERENCES visits (id),
    channel TEXT NOT NULL CHECK (channel IN ('sms', 'mail'))
);
CREATE TABLE fees (
    id INTEGER PRIMARY KEY,
    visit_id TEXT NOT NULL REFERENCES visits (id),
    amount REAL NOT NULL CHECK (amount > 0)
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    visit_id TEXT NOT NULL REFERENCES visits (id),
    type TEXT NOT NULL CHECK (type IN ('doctor', 'room', 'approval', 'identity')),
    priority TEXT NOT NULL CHECK (priority IN ('low', 'high')),
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
);
