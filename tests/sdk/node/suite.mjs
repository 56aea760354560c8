// The daemons and the requests of the suite, and answers in one form that can be compared.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { z } from "zod";

const { servers, requests } = JSON.parse(process.env.SDK_CONFORMANCE);

export { requests };

/** The schema of an answer to parse. */
export const Trip = z.object({
  city: z.enum(["Oslo", "São Paulo"]),
  stops: z.array(z.object({ name: z.string().max(8), nights: z.int().min(1).max(99) })).min(1).max(2),
  note: z.string().max(4).nullable(),
});

/** A client that asks once unless it is told otherwise. */
export function connect(server, options = {}) {
  return new OpenAI({ baseURL: `${servers[server]}/v1`, apiKey: "anything", maxRetries: 0, timeout: 60_000, ...options });
}

/** A request for the worker that does what it is told. */
export function ordered(orders, fields = {}) {
  return { model: "reference", messages: [{ role: "user", content: orders }], ...fields };
}

/** A request that makes the scripted model want to reply this. */
export function told(reply, fields = {}) {
  return { ...ordered(`say <reply>${reply}</reply>`), temperature: 0, ...fields };
}

/** The choices of a whole answer: text, calls, end and logprobs. */
export function whole(answer) {
  return answer.choices.map(({ index, message, finish_reason, logprobs }, place) => {
    assert.equal(index, place);
    return {
      text: message.content ?? "",
      calls: (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
      finish_reason,
      logprobs: logprobs?.content ?? [],
    };
  });
}

/** The choices of a stream, put together as its pieces come; each must end exactly once. */
export async function folded(stream, choices = 1) {
  const all = Array.from({ length: choices }, () => ({ text: "", calls: [], finish_reason: null, logprobs: [] }));
  for await (const chunk of stream) {
    for (const { index, delta, finish_reason, logprobs } of chunk.choices) {
      const one = all[index];
      assert.equal(one.finish_reason, null, "nothing follows the end");
      one.text += delta.content ?? "";
      one.finish_reason = finish_reason ?? null;
      one.logprobs.push(...(logprobs?.content ?? []));
      for (const piece of delta.tool_calls ?? []) take(one.calls, piece);
    }
  }
  for (const one of all) assert.ok(one.finish_reason);
  return all;
}

// The first piece of a call has its index, id, type and name; the others have arguments alone.
function take(calls, { index, id, type, function: { name, arguments: text } }) {
  if (index === calls.length) {
    assert.ok(id);
    assert.ok(name);
    assert.equal(type, "function");
    calls.push([name, ""]);
  } else {
    assert.deepEqual([id, name, type], [undefined, undefined, undefined]);
  }
  calls[index][1] += text ?? "";
}

/** The record of a request by the id of its answer, as soon as it has ended. */
export async function ended(server, id) {
  const signal = AbortSignal.timeout(10_000);
  const response = await fetch(`${servers[server]}/agentserve/v1/events`, { signal });
  let text = "";
  for await (const data of response.body.pipeThrough(new TextDecoderStream())) {
    text += data;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const snapshot = JSON.parse(event.slice(event.indexOf("data: ") + "data: ".length));
      const record = snapshot.recent.find((one) => one.id === id || one.request_id === id);
      if (record) return record;
    }
  }
  throw new Error("the daemon went away");
}
