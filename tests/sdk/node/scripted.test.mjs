// The official Node SDK against daemons whose models say what they are told.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { connect, ended, folded, ordered, requests, told, Trip, whole } from "./suite.mjs";

const scripted = connect("scripted");
const faulty = connect("faulty");
const prose = requests.scripted_replies.prose;
const paints = requests.scripted_replies.paints;
const Paint = z.object({ colour: z.enum(["red", "blue"]) });

// ---- answers

test("a whole answer has all that the SDK knows", async () => {
  const answer = await faulty.chat.completions.create(ordered("deltas=3"));
  assert.match(answer.id, /^chatcmpl-/);
  assert.deepEqual([answer.object, answer.model, answer.system_fingerprint], ["chat.completion", "reference", "fake-1"]);
  assert.deepEqual(answer.choices, [
    { index: 0, message: { role: "assistant", content: "w0 w1 w2 " }, finish_reason: "stop" },
  ]);
  assert.deepEqual(answer.usage, {
    prompt_tokens: 10,
    completion_tokens: 3,
    total_tokens: 13,
    prompt_tokens_details: { cached_tokens: 4 },
  });
  assert.ok(answer._request_id);
});

test("a stream begins with the role and ends with the usage", async () => {
  const asked = ordered("deltas=3 step=0.01", { stream: true, stream_options: { include_usage: true } });
  const chunks = [];
  for await (const chunk of await faulty.chat.completions.create(asked)) chunks.push(chunk);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "w0 w1 w2 ");
  assert.equal(chunks.at(-2).choices[0].finish_reason, "stop");
  assert.deepEqual([chunks.at(-1).choices, chunks.at(-1).usage.total_tokens], [[], 13]);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
});

for (const [name, asked] of Object.entries(requests.scripted)) {
  test(`a stream adds up to the whole answer: ${name}`, async () => {
    const answer = whole(await scripted.chat.completions.create(asked));
    const stream = await scripted.chat.completions.create({ ...asked, stream: true });
    assert.deepEqual(await folded(stream, asked.n), answer);
    const helped = await scripted.chat.completions.stream(asked).finalChatCompletion();
    assert.deepEqual(whole(helped), answer);
  });
}

test("text is what the model said to the byte", async () => {
  const answers = [];
  for (const name of ["text", "cut text", "stop string"]) {
    const [{ message, finish_reason }] = (await scripted.chat.completions.create(requests.scripted[name])).choices;
    answers.push([message.content, finish_reason]);
  }
  assert.deepEqual(answers, [[prose, "stop"], ["Grüße a", "length"], [prose.split("  r")[0], "stop"]]);
});

test("n choices are one answer", async () => {
  const answer = await scripted.chat.completions.create(requests.scripted["three choices"]);
  assert.deepEqual(whole(answer).map((one) => one.text), [prose, prose, prose]);
});

test("logprobs spell the text", async () => {
  const [{ message, logprobs }] = (await scripted.chat.completions.create(requests.scripted.logprobs)).choices;
  const bytes = logprobs.content.flatMap((entry) => entry.bytes);
  assert.equal(Buffer.from(bytes).toString(), message.content);
  assert.ok(logprobs.content.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 2));
});

// ---- tools

test("a single call comes beside the text", async () => {
  const [{ message, finish_reason }] = (await scripted.chat.completions.create(requests.scripted["single call"])).choices;
  assert.deepEqual([message.content, finish_reason], ["I look.", "tool_calls"]);
  const [call] = message.tool_calls;
  assert.match(call.id, /^call_/);
  assert.deepEqual([call.type, call.function.name], ["function", "read"]);
  assert.deepEqual(JSON.parse(call.function.arguments), { path: "ä/🦊.py" });
});

test("parallel calls keep their order and have ids of their own", async () => {
  const asked = requests.scripted["parallel calls"];
  const [{ message }] = (await scripted.chat.completions.create(asked)).choices;
  const again = await scripted.chat.completions.stream(asked).finalMessage();
  assert.equal(message.content, null);
  assert.deepEqual(again.tool_calls.map((call) => call.function.name), ["read", "paint"]);
  const ids = [...message.tool_calls, ...again.tool_calls].map((call) => call.id);
  assert.equal(new Set(ids).size, 4);
  const [alone] = whole(await scripted.chat.completions.create(requests.scripted["one call at most"]));
  assert.deepEqual(alone.calls.map(([name]) => name), ["read"]);
});

test("a call that is demanded comes", async () => {
  for (const name of ["required call", "named call"]) {
    const [one] = whole(await scripted.chat.completions.create(requests.scripted[name]));
    assert.deepEqual([one.text, one.finish_reason, one.calls.length], ["", "tool_calls", 1]);
    assert.equal(one.calls[0][0], "paint");
    Paint.parse(JSON.parse(one.calls[0][1]));
  }
});

test("arguments are parsed by the schema of their tool", async () => {
  const asked = told(`So.\n${paints}`, { tools: [zodFunction({ name: "paint", parameters: Paint })] });
  const parsed = (await scripted.chat.completions.parse(asked)).choices[0].message;
  const stream = scripted.chat.completions.stream(asked);
  const done = [];
  stream.on("tool_calls.function.arguments.done", (event) => done.push(event.parsed_arguments));
  const streamed = await stream.finalMessage();
  assert.deepEqual(done, [{ colour: "blue" }]);
  for (const message of [parsed, streamed]) {
    assert.equal(message.content, "So.");
    assert.deepEqual(message.tool_calls.map((call) => call.function.parsed_arguments), [{ colour: "blue" }]);
  }
});

for (const stream of [false, true]) {
  test(`runTools calls until the model is done: ${stream ? "streamed" : "whole"}`, async () => {
    const painted = [];
    const paint = zodFunction({
      name: "paint",
      parameters: Paint,
      function: ({ colour }) => {
        painted.push(colour);
        return `<reply>It is ${colour}.</reply>`;
      },
    });
    const runner = scripted.chat.completions.runTools(told(paints, { tools: [paint], stream }));
    assert.equal(await runner.finalContent(), "It is blue.");
    assert.deepEqual(painted, ["blue"]);
    assert.deepEqual(runner.messages.map((message) => message.role), ["user", "assistant", "tool", "assistant"]);
    assert.equal(runner.messages[2].tool_call_id, runner.messages[1].tool_calls[0].id);
  });
}

test("calls go back with their results in any order", async () => {
  const asked = requests.scripted["parallel calls"];
  const [{ message }] = (await scripted.chat.completions.create(asked)).choices;
  const results = message.tool_calls.map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: `<reply>${call.function.name} done</reply>`,
  }));
  const messages = [...asked.messages, message, ...results.reverse()];
  const answer = await scripted.chat.completions.create({ ...asked, messages });
  assert.equal(answer.choices[0].message.content, "read done");
  const strange = [...asked.messages, message, { ...results[0], tool_call_id: "call_x" }];
  await assert.rejects(scripted.chat.completions.create({ ...asked, messages: strange }), OpenAI.BadRequestError);
});

// ---- schemas

test("the SDK parses what its own schema asked for", async () => {
  const response_format = zodResponseFormat(Trip, "trip");
  const trip = { city: "São Paulo", stops: [{ name: "Ubatuba", nights: 12 }], note: "日本 🦊" };
  for (const reply of [JSON.stringify(trip), "São Paulo, for three days."]) {
    const asked = told(reply, { response_format, max_tokens: 200 });
    const { parsed } = (await scripted.chat.completions.parse(asked)).choices[0].message;
    Trip.parse(parsed);
    if (reply.startsWith("{")) assert.deepEqual(parsed, trip);
    const streamed = await scripted.chat.completions.stream(asked).finalMessage();
    assert.deepEqual(streamed.parsed, parsed);
  }
  const cut = told(JSON.stringify(trip), { response_format, max_tokens: 5 });
  await assert.rejects(scripted.chat.completions.parse(cut), OpenAI.LengthFinishReasonError);
});

// ---- the other routes

test("bare prompts are completed whole and streamed", async () => {
  const prompt = `<reply>${prose}</reply><|im_start|>assistant\n`;
  const asked = { model: "reference", prompt: [prompt, prompt], n: 2, max_tokens: 50, temperature: 0 };
  const answer = await scripted.completions.create(asked);
  assert.match(answer.id, /^cmpl-/);
  assert.equal(answer.object, "text_completion");
  assert.deepEqual(
    answer.choices.map(({ index, text, finish_reason }) => [index, text, finish_reason]),
    [0, 1, 2, 3].map((index) => [index, prose, "stop"]),
  );
  const texts = ["", "", "", ""];
  for await (const chunk of await scripted.completions.create({ ...asked, stream: true })) {
    for (const choice of chunk.choices) texts[choice.index] += choice.text;
  }
  assert.deepEqual(texts, [prose, prose, prose, prose]);
  await assert.rejects(scripted.completions.create({ ...asked, suffix: "the end" }), OpenAI.BadRequestError);
});

test("models are listed and found by their names", async () => {
  const listed = [];
  for await (const model of scripted.models.list()) listed.push(model);
  assert.deepEqual(listed.map(({ id, object, owned_by }) => [id, object, owned_by]), [["reference", "model", "agentserve"]]);
  const found = await scripted.models.retrieve("reference");
  assert.deepEqual({ ...found }, listed[0]);
  await assert.rejects(scripted.models.retrieve("a/b:c"), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    assert.match(error.message, /There is no model 'a\/b:c'/);
    return true;
  });
});

// ---- errors

const errors = [
  [ordered("", { model: "gpt-9" }), OpenAI.NotFoundError, "model_not_found", "model"],
  [ordered("", { temperature: 3 }), OpenAI.BadRequestError, "invalid_value", "temperature"],
  [ordered("reject=context_length_exceeded"), OpenAI.BadRequestError, "context_length_exceeded", "messages"],
  [ordered("deltas=2 fail_after=1"), OpenAI.InternalServerError, "internal_error", null],
  [ordered("deltas=2 die_after=1"), OpenAI.InternalServerError, "worker_died", null],
  [ordered("hold", { timeout: 0.1 }), OpenAI.InternalServerError, "timeout", null],
];

for (const [asked, kind, code, param] of errors) {
  test(`errors are the exceptions of the SDK: ${code}`, async () => {
    await assert.rejects(faulty.chat.completions.create(asked), (error) => {
      assert.ok(error instanceof kind, error);
      assert.deepEqual([error.code, error.param], [code, param]);
      assert.ok(error.requestID);
      return true;
    });
  });
}

test("an error frame in a stream is an API error", async () => {
  const stream = await faulty.chat.completions.create(ordered("deltas=2 fail_after=1 step=0.1", { stream: true }));
  await assert.rejects(folded(stream), (error) => {
    assert.ok(error instanceof OpenAI.APIError, error);
    assert.match(error.message, /the engine failed while it computed this request/);
    return true;
  });
});

test("a stream that breaks off is no answer", async () => {
  const stream = await faulty.chat.completions.create(ordered("deltas=3 die_after=2 step=0.1", { stream: true }));
  // What the SDK leaves as it comes from fetch.
  await assert.rejects(folded(stream), { name: "TypeError", message: "terminated" });
});

// ---- a full queue

/** Calls `work` while a request runs that fills the daemon `narrow`; `work` may end that one itself. */
async function crowded(work) {
  const running = await connect("narrow").chat.completions.create(ordered("hold", { stream: true }));
  const { value } = await running[Symbol.asyncIterator]().next();
  try {
    await work(() => running.controller.abort());
  } finally {
    running.controller.abort();
    await ended("narrow", value.id);
  }
}

test("a full queue is a rate limit error", async () => {
  await crowded(async () => {
    for (const stream of [false, true]) {
      await assert.rejects(connect("narrow").chat.completions.create(ordered("", { stream })), (error) => {
        assert.ok(error instanceof OpenAI.RateLimitError, error);
        assert.deepEqual([error.code, error.type, error.headers.get("retry-after")], ["queue_full", "rate_limit_error", "1"]);
        return true;
      });
    }
  });
});

test("the SDK comes back after the time that it was told", async () => {
  const answers = [];
  await crowded(async (release) => {
    const noting = async (...request) => {
      const response = await fetch(...request);
      answers.push([response.status, performance.now()]);
      release();
      return response;
    };
    const patient = connect("narrow", { maxRetries: 2, fetch: noting });
    const answer = await patient.chat.completions.create(ordered("deltas=2"));
    assert.equal(answer.choices[0].message.content, "w0 w1 ");
  });
  assert.deepEqual(answers.map(([status]) => status), [429, 200]);
  // Without the header it would have come back in half a second; timers may be a little early.
  assert.ok(answers[1][1] - answers[0][1] >= 990, answers);
});

// ---- cancellation

async function cancelled(id) {
  const { terminal_state, reason } = await ended("faulty", id);
  assert.deepEqual([terminal_state, reason], ["cancelled", "client_disconnected"]);
}

for (const orders of ["hold", "deltas=9999 step=0.01"]) {
  test(`aborting a stream cancels its request: ${orders}`, async () => {
    const stream = await faulty.chat.completions.create(ordered(orders, { stream: true }));
    const { value } = await stream[Symbol.asyncIterator]().next();
    stream.controller.abort();
    await cancelled(value.id);
  });

  test(`leaving the loop over a stream cancels its request: ${orders}`, async () => {
    let id;
    for await (const chunk of await faulty.chat.completions.create(ordered(orders, { stream: true }))) {
      id = chunk.id;
      break;
    }
    await cancelled(id);
  });
}

test("aborting the helper for streams cancels its request", async () => {
  const stream = faulty.chat.completions.stream(ordered("deltas=2 hold"));
  let id;
  stream.on("chunk", (chunk) => {
    id = chunk.id;
    if (chunk.choices[0].delta.content) stream.abort();
  });
  await assert.rejects(stream.finalChatCompletion(), OpenAI.APIUserAbortError);
  await cancelled(id);
});

test("a time-out of the SDK is its own error and cancels", async () => {
  const asked = faulty.chat.completions.create(ordered("hold"), { timeout: 300, headers: { "X-Request-ID": "hasty" } });
  await assert.rejects(asked, OpenAI.APIConnectionTimeoutError);
  await cancelled("hasty");
});
