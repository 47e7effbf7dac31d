#!/usr/bin/env node
// Places an order at most once, with nothing but Node (18 or later): reserve, call the exchange, commit.
//
//   order.mjs KEY SYMBOL QUANTITY
//
// IDEMACTOR_URL and EXCHANGE_URL say where both are, IDEMACTOR_TOKEN who asks. Exit codes: 0 done, now or before, and
// what the exchange answered is printed; 10 somebody else is at it; 11 in doubt; 12 the key stands for another order;
// 30 nothing happened: the exchange refused it, or cannot be reached; 1 anything else.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const env = process.env;
const URL_ = `${env.IDEMACTOR_URL ?? "http://127.0.0.1:8787"}/v1/${env.IDEMACTOR_NAMESPACE ?? "trade"}`;
const EXCHANGE = env.EXCHANGE_URL ?? "http://127.0.0.1:9100";
const EXCHANGE_TIMEOUT_MS = Number(env.EXCHANGE_TIMEOUT_S ?? 5) * 1000;
const TRIES = Number(env.TRIES ?? 5);
const PAUSES_MS = [0, 200, 500, 1000, 2000, 4000, 8000];
const REFUSED = "the exchange refused it";
const UNREACHABLE = "the exchange cannot be reached";

class Ended extends Error {
  constructor(exit, message) {
    super(message);
    this.exit = exit;
  }
}

// One call. Every one of these may be repeated, and is, until there is an answer.
async function ask(call, members) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${env.IDEMACTOR_TOKEN ?? ""}` };
  let trouble;
  for (const pause of PAUSES_MS) {
    await sleep(pause);
    try {
      const signal = AbortSignal.timeout(5000);
      const answer = await fetch(`${URL_}/${call}`, { method: "POST", headers, body: JSON.stringify(members), signal });
      if (answer.status !== 503) return { ...(await answer.json()), http: answer.status };
      trouble = await answer.text();
    } catch (error) {
      trouble = error.cause?.message ?? error.message;
    }
  }
  throw new Ended(1, `no answer to ${call}: ${trouble}`);
}

// The grant, or the outcome of the first time.
async function reserve(key, payload) {
  // The name of this one acquisition: whatever is lost on the way, asking again gets the first answer.
  const request_id = randomUUID();
  for (let tries = 1; ; tries++) {
    const answer = await ask("reserve", { key, payload, request_id, lease_ms: 30_000 });
    if (answer.http === 201 || answer.http === 200) return answer;
    switch (answer.code) {
      case "IDEMPOTENCY_IN_FLIGHT":
        if (tries >= TRIES) throw new Ended(10, `in flight: ${answer.holder}`);
        await sleep(Math.min(answer.retry_after_ms, 1000));
        break;
      case "IDEMPOTENCY_IN_DOUBT":
        throw new Ended(11, `in doubt: ${answer.operation_id}`);
      case "IDEMPOTENCY_MISMATCH":
        throw new Ended(12, "the key stands for another order");
      default:
        throw new Ended(1, `${answer.http} ${answer.code}: ${answer.detail}`);
    }
  }
}

// Whether an earlier attempt placed it: the exchange knows it by the operation id, the same for every attempt.
async function find(operationId) {
  const answer = await fetch(`${EXCHANGE}/orders/${operationId}`, { signal: AbortSignal.timeout(5000) });
  if (answer.status === 404) return null;
  if (answer.status !== 200) throw new Error("the exchange does not say");
  return await answer.text();
}

// { placed: true, body }, { placed: false, why }; or an exception, after which nobody knows.
async function place(order, operationId) {
  let answer;
  try {
    answer = await fetch(`${EXCHANGE}/orders`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...order, client_order_id: operationId }),
      signal: AbortSignal.timeout(EXCHANGE_TIMEOUT_MS),
    });
  } catch (error) {
    // There was nobody to talk to. After any other failure the order may be on its way.
    if (["ECONNREFUSED", "ENOTFOUND"].includes(error.cause?.code)) return { placed: false, why: UNREACHABLE };
    throw error;
  }
  if (answer.status >= 400 && answer.status < 500) return { placed: false, why: REFUSED };
  const body = await answer.text();
  const success = answer.status === 200 ? JSON.parse(body).success : undefined;
  if (typeof success !== "boolean") throw new Error(`the exchange answered ${answer.status}`);
  return { placed: success, body, why: REFUSED };
}

async function main(key, symbol, quantity) {
  const order = { symbol, quantity };
  const granted = await reserve(key, order);
  if (granted.result === "completed") return console.log(granted.outcome?.body ?? "");
  const held = { key, token: granted.token };
  let said;
  try {
    const found = granted.takeover ? await find(granted.operation_id) : null;
    said = found === null ? await place(order, granted.operation_id) : { placed: true, body: found };
  } catch (error) {
    const told = await ask("doubt", { ...held, reason: "the exchange did not say" });
    if (told.http !== 200) throw new Ended(1, `in doubt, not recorded: ${told.code}`);
    throw new Ended(11, `in doubt: ${granted.operation_id}: ${error.message}`);
  }
  if (!said.placed) {
    const released = await ask("release", { ...held, reason: said.why });
    if (released.http !== 200) throw new Ended(1, `${said.why}, not recorded: ${released.code}`);
    throw new Ended(30, said.why);
  }
  const committed = await ask("commit", { ...held, outcome: { status: 200, body: said.body } });
  if (committed.result !== "committed") throw new Ended(1, `placed, not recorded: ${committed.code}`);
  console.log(said.body);
}

if (process.argv.length !== 5) {
  console.error("usage: order.mjs KEY SYMBOL QUANTITY");
  process.exit(2);
}
try {
  await main(...process.argv.slice(2));
} catch (error) {
  console.error(error.message);
  process.exitCode = error.exit ?? 1;
}
