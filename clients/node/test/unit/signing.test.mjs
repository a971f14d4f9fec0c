import assert from "node:assert/strict";
import { test } from "node:test";

import { sign, SignatureError, verify } from "../../dist/esm/index.js";
import { OTHER, SECRET } from "./support.mjs";

const ID = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const AT = 1614265330;
const BODY = '{"test": 2432232314}';

function headersOf(body, change = {}) {
  return {
    "Webhook-Id": ID,
    "Webhook-Timestamp": String(AT),
    "Webhook-Signature": sign(SECRET, ID, AT, body),
    ...change,
  };
}

test("signature is the one of the test vector of Standard Webhooks", () => {
  assert.equal(sign(SECRET, ID, AT, BODY), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
});

test("text, bytes and Headers objects are verified", () => {
  const bytes = Buffer.from([0xff, 0, 0xfe]);

  assert.equal(verify(SECRET, headersOf(BODY), BODY, { now: AT }), ID);
  assert.equal(verify(SECRET, headersOf(bytes), bytes, { now: AT }), ID);
  assert.equal(verify(SECRET, new Headers(headersOf("Zoë")), "Zoë", { now: AT }), ID);
});

test("one of several secrets and signatures is enough", () => {
  const signature = `v1a,abc v1,zzz ${sign(SECRET, ID, AT, "x")}`;
  const headers = headersOf("x", { "Webhook-Signature": signature });

  assert.equal(verify([OTHER, SECRET], headers, "x", { now: AT }), ID);
});

for (const [change, detail] of [
  [{ "Webhook-Signature": "v1,AAAA" }, "No signature matches."],
  [{ "Webhook-Signature": "v1,Ω" }, "No signature matches."],
  [{ "Webhook-Id": "msg_other" }, "No signature matches."],
  [{ "Webhook-Timestamp": String(AT + 1) }, "No signature matches."],
  [{ "Webhook-Timestamp": "soon" }, "webhook-timestamp is not a whole number of seconds."],
  [{ "Webhook-Timestamp": `${AT}x` }, "webhook-timestamp is not a whole number of seconds."],
  [{ "Webhook-Timestamp": String(AT - 301) }, "The timestamp is 301 s off; the limit is 300 s."],
  [{ "Webhook-Timestamp": String(AT + 301) }, "The timestamp is -301 s off; the limit is 300 s."],
  [{ "Webhook-Id": undefined }, "The header webhook-id is missing."],
]) {
  test(`changed ${JSON.stringify(change)} is refused`, () => {
    const check = () => verify(SECRET, headersOf("x", change), "x", { now: AT });

    assert.throws(check, (error) => error instanceof SignatureError && error.message === detail);
  });
}

test("another body and another secret are refused", () => {
  assert.throws(() => verify(SECRET, headersOf("x"), "y", { now: AT }), SignatureError);
  assert.throws(() => verify(OTHER, headersOf("x"), "x", { now: AT }), SignatureError);
});

for (const secret of ["", "whsec_", "whsec_\u2603", "whsec_MfKQ9r8GKYqr!!"]) {
  test(`secret ${JSON.stringify(secret)} is an error of its own`, () => {
    assert.throws(() => verify(secret, headersOf("x"), "x", { now: AT }), /The secret is/);
  });
}
