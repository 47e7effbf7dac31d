"""The tables of the variant without idemactor, and every statement that touches them.

An order is accepted by one transaction that writes three things or none: the claim (the unique key), the order, and the
entry in the outbox, with a NOTIFY that wakes the relay when it commits. An entry stays until the order has ended. Its
``attempt`` is the fencing token: who changes an entry names the attempt that it holds, and changes nothing where
somebody else has gone on meanwhile.
"""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "outbox"

SCHEMA: Final = """
-- IF NOT EXISTS is no protection against another process that does the same at the same moment.
SELECT pg_advisory_xact_lock(0);
CREATE TABLE IF NOT EXISTS orders (
    id uuid PRIMARY KEY,
    key text NOT NULL UNIQUE,
    account text NOT NULL,
    body bytea NOT NULL,
    ending text CHECK (ending IN ('succeeded', 'failed', 'expired')),
    outcome bytea,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz
);
CREATE TABLE IF NOT EXISTS outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id uuid NOT NULL REFERENCES orders,
    account text NOT NULL,
    phase text NOT NULL DEFAULT 'queued' CHECK (phase IN ('queued', 'delivering', 'in_doubt')),
    attempt integer NOT NULL DEFAULT 0,
    -- When something is to be done: a try, the end of a lease, a question.
    due_at timestamptz NOT NULL DEFAULT now(),
    sent_at timestamptz,
    perhaps_sent boolean NOT NULL DEFAULT false,
    deliver_until timestamptz NOT NULL,
    reason text
);
CREATE INDEX IF NOT EXISTS outbox_due ON outbox (phase, due_at, seq);
CREATE INDEX IF NOT EXISTS outbox_lane ON outbox (account, seq);
CREATE UNIQUE INDEX IF NOT EXISTS outbox_order ON outbox (order_id);
"""

LANE: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
"""Numbers are given out before transactions commit. Who accepts orders of one account does so one after the other, so
that a smaller number is never seen after a larger one, and the relay cannot deliver the larger one first."""

ACCEPT: Final = """
WITH claimed AS (
    INSERT INTO orders (id, key, account, body) VALUES (%(id)s, %(key)s, %(account)s, %(body)s)
    ON CONFLICT (key) DO NOTHING RETURNING id, account
), queued AS (
    INSERT INTO outbox (order_id, account, due_at, deliver_until)
    SELECT id, account, coalesce(%(due_at)s::timestamptz, now()), now() + %(horizon_ms)s * interval '1 ms' FROM claimed
    RETURNING seq
)
SELECT seq, pg_notify('outbox', '') FROM queued
"""
"""No row: the key was claimed before."""

STATE: Final = "coalesce(orders.ending, outbox.phase)"
FIND_BY_KEY: Final = f"""
SELECT orders.id, orders.body, {STATE} FROM orders LEFT JOIN outbox ON order_id = orders.id WHERE key = %s
"""
FIND: Final = f"""
SELECT orders.body, {STATE}, outcome FROM orders LEFT JOIN outbox ON order_id = orders.id WHERE orders.id = %s
"""

TAKE: Final = """
UPDATE outbox SET phase = 'delivering', attempt = attempt + 1, sent_at = now(),
    due_at = now() + %(lease_ms)s * interval '1 ms'
FROM orders
WHERE orders.id = outbox.order_id AND seq IN (
    SELECT seq FROM outbox AS head WHERE phase = 'queued' AND due_at <= now()
        AND seq = (SELECT min(seq) FROM outbox AS lane WHERE lane.account = head.account)
    ORDER BY due_at, seq LIMIT %(count)s FOR UPDATE SKIP LOCKED)
RETURNING seq, attempt, outbox.order_id, orders.body, perhaps_sent, deliver_until <= now()
"""
"""What is due and the first of its account; whatever stands before it (queued, under way, in doubt) blocks it."""

LAPSE: Final = """
UPDATE outbox SET phase = %(phase)s, attempt = attempt + 1, due_at = now(), perhaps_sent = true, reason = 'lapsed'
WHERE phase = 'delivering' AND due_at <= now()
"""
"""Who delivered is gone, or too late: where the engine recognises ids it is sent again, else it is in doubt."""

ASK: Final = """
UPDATE outbox SET attempt = attempt + 1, due_at = now() + least(
    %(first_ms)s * power(2, least(attempt, 30)), %(longest_ms)s) * interval '1 ms'
WHERE seq IN (
    SELECT seq FROM outbox WHERE phase = 'in_doubt' AND due_at <= now() ORDER BY due_at LIMIT %(count)s
    FOR UPDATE SKIP LOCKED)
RETURNING seq, attempt, order_id, sent_at <= now() - %(status_after_ms)s * interval '1 ms'
"""

POSTPONE: Final = """
UPDATE outbox SET phase = %(phase)s, due_at = now() + %(delay_ms)s * interval '1 ms', perhaps_sent = %(perhaps_sent)s,
    reason = %(reason)s
WHERE seq = %(seq)s AND attempt = %(attempt)s
"""

END: Final = """
WITH done AS (DELETE FROM outbox WHERE seq = %(seq)s AND attempt = %(attempt)s RETURNING order_id)
UPDATE orders SET ending = %(ending)s, outcome = %(outcome)s, ended_at = now() FROM done WHERE id = done.order_id
"""
"""The outcome and the end of the entry, together."""

IN_DOUBT: Final = "SELECT count(*), min(sent_at) FROM outbox WHERE phase = 'in_doubt'"
"""For an alarm: nothing that is in doubt goes away by itself."""
