// The gateway way of deduplicating on Durable Objects: a key is hashed to one of 16 objects, and that object decides.
// reserve, commit and release come in by fetch; what they change is in the object's SQLite storage, and the output gate
// of the runtime holds the answer back until it is on disk. An alarm removes what has expired.
import { DurableObject } from "cloudflare:workers";

const OBJECTS = 16;
// Longer than a run, as with everybody: what one subject left must not expire while another is measured.
const LEASE_MS = 3600000;
const SWEEP_MAX = 1000;

// FNV-1a, 32 bits (http://www.isthe.com/chongo/tech/comp/fnv/): cheap, so that it does not count against the runtime.
function hashOf(key) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < key.length; i++) {
    hash = Math.imul(hash ^ key.charCodeAt(i), 0x01000193);
  }
  return hash >>> 0;
}

export default {
  async fetch(request, env) {
    const call = await request.json();
    if (typeof call.key !== "string" || call.key === "") {
      return Response.json({ code: "IDEMPOTENCY_INVALID_REQUEST" }, { status: 400 });
    }
    const id = env.DEDUPLICATOR.idFromName(`object-${hashOf(call.key) % OBJECTS}`);
    return env.DEDUPLICATOR.get(id).fetch(request.url, { method: "POST", body: JSON.stringify(call) });
  },
};

export class Deduplicator extends DurableObject {
  constructor(context, env) {
    super(context, env);
    this.sql = context.storage.sql;
    this.sql.exec(`CREATE TABLE IF NOT EXISTS records (
      key TEXT PRIMARY KEY, state TEXT NOT NULL, token INTEGER NOT NULL, expires_at INTEGER NOT NULL)`);
    this.sql.exec("CREATE INDEX IF NOT EXISTS by_end ON records (expires_at)");
    this.token = this.sql.exec("SELECT max(token) AS token FROM records").one().token ?? 0;
    context.blockConcurrencyWhile(async () => {
      this.alarmAt = await context.storage.getAlarm();
    });
  }

  async fetch(request) {
    const call = await request.json();
    const now = Date.now();
    switch (new URL(request.url).pathname) {
      case "/reserve":
        return this.reserve(call, now);
      case "/commit":
        return this.commit(call, now);
      case "/release":
        return this.release(call);
      default:
        return Response.json({ code: "IDEMPOTENCY_NOT_FOUND" }, { status: 404 });
    }
  }

  find(key) {
    return this.sql.exec("SELECT state, token, expires_at FROM records WHERE key = ?", key).toArray()[0];
  }

  reserve(call, now) {
    const found = this.find(call.key);
    if (found !== undefined && found.expires_at > now) {
      return Response.json({ result: found.state, proceed: false }, { status: 409 });
    }
    // Only what is stored with the grant may be handed out, and never twice.
    const token = Math.max(this.token + 1, now);
    this.token = token;
    this.sql.exec(
      "INSERT OR REPLACE INTO records (key, state, token, expires_at) VALUES (?, 'in_flight', ?, ?)",
      call.key, token, now + LEASE_MS);
    if (this.alarmAt === null) {
      this.alarmAt = now + LEASE_MS;
      this.ctx.storage.setAlarm(this.alarmAt);
    }
    return Response.json({ result: "reserved", proceed: true, key: call.key, token }, { status: 201 });
  }

  commit(call, now) {
    const found = this.find(call.key);
    if (found === undefined || found.token !== call.token) {
      return Response.json({ result: "stale" }, { status: 409 });
    }
    this.sql.exec(
      "UPDATE records SET state = 'completed', expires_at = ? WHERE key = ?", now + LEASE_MS, call.key);
    return Response.json({ result: "committed" });
  }

  release(call) {
    const found = this.find(call.key);
    if (found === undefined || found.token !== call.token || found.state === "completed") {
      return Response.json({ result: "stale" }, { status: 409 });
    }
    this.sql.exec("DELETE FROM records WHERE key = ?", call.key);
    return Response.json({ result: "released" });
  }

  async alarm() {
    const now = Date.now();
    this.sql.exec(
      "DELETE FROM records WHERE key IN (SELECT key FROM records WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)",
      now, SWEEP_MAX);
    const next = this.sql.exec("SELECT min(expires_at) AS at FROM records").one().at;
    this.alarmAt = next === null ? null : Math.max(next, now + 1);
    if (this.alarmAt !== null) {
      this.ctx.storage.setAlarm(this.alarmAt);
    }
  }
}
