// The official Node SDK against a daemon with real models.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { connect, folded, requests, Trip, whole } from "./suite.mjs";

const client = connect("real");
const embedded = ["A fox runs.", "Ein Fuchs läuft."];
const answers = new Map();

/** A whole answer by its name, asked for once for all cases. */
async function answer(name) {
  if (!answers.has(name)) answers.set(name, await client.chat.completions.create(requests.smollm2[name]));
  return answers.get(name);
}

for (const [name, asked] of Object.entries(requests.smollm2)) {
  test(`a stream adds up to the whole answer: ${name}`, async () => {
    const stream = await client.chat.completions.create({ ...asked, stream: true });
    assert.deepEqual(await folded(stream, asked.n), whole(await answer(name)));
  });
}

test("calls that are demanded fit their schemas", async () => {
  const [required] = whole(await answer("required call"));
  assert.equal(required.calls[0][0], "get_weather");
  z.strictObject({ city: z.string(), days: z.literal([1, 2, 3]) }).parse(JSON.parse(required.calls[0][1]));
  const [named] = whole(await answer("named call"));
  assert.equal(named.calls[0][0], "paint");
  z.strictObject({ colour: z.enum(["red", "blue"]) }).parse(JSON.parse(named.calls[0][1]));
});

test("the SDK parses what its own schema asked for", async () => {
  const asked = { ...requests.smollm2.schema, max_tokens: 80, response_format: zodResponseFormat(Trip, "trip") };
  const { parsed } = (await client.chat.completions.parse(asked)).choices[0].message;
  Trip.parse(parsed);
  assert.deepEqual((await client.chat.completions.stream(asked).finalMessage()).parsed, parsed);
});

test("three choices are different answers", async () => {
  assert.equal(new Set(whole(await answer("three choices")).map((one) => one.text)).size, 3);
});

test("logprobs spell the text and the likeliest token is taken", async () => {
  const [{ message, logprobs }] = (await answer("logprobs")).choices;
  assert.equal(Buffer.from(logprobs.content.flatMap((entry) => entry.bytes)).toString(), message.content);
  for (const { token, logprob, top_logprobs: top } of logprobs.content) {
    assert.deepEqual([token, logprob, 3], [top[0].token, top[0].logprob, top.length]);
    assert.ok(0 >= top[0].logprob && top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
  }
});

test("a bare prompt is completed whole and streamed", async () => {
  const asked = { model: "smollm2", prompt: "The capital of France is", max_tokens: 2, temperature: 0, logprobs: 2 };
  const [{ text, logprobs }] = (await client.completions.create(asked)).choices;
  assert.equal(text, " Paris.");
  assert.equal(logprobs.tokens.join(""), text);
  const pieces = [];
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) {
    pieces.push(...chunk.choices.map((choice) => choice.text));
  }
  assert.equal(pieces.join(""), text);
});

test("vectors are the same as floats and as base64", async () => {
  const asked = { model: "all-minilm", input: embedded };
  // The SDK asks for base64 where nothing is said, and decodes it.
  const decoded = await client.embeddings.create(asked);
  const plain = await client.embeddings.create({ ...asked, encoding_format: "float" });
  const packed = await client.embeddings.create({ ...asked, encoding_format: "base64" });
  const rows = plain.data.map((one) => one.embedding);
  assert.deepEqual(rows.map((row) => row.length), [384, 384]);
  // Floats are written with as many digits as tell them apart in single precision.
  const single = (row) => [...Float32Array.from(row)];
  assert.deepEqual(decoded.data.map((one) => single(one.embedding)), rows.map(single));
  const unpacked = packed.data.map(({ embedding }) => {
    const bytes = Buffer.from(embedding, "base64");
    return Array.from({ length: bytes.length / 4 }, (_, place) => bytes.readFloatLE(4 * place));
  });
  assert.deepEqual(unpacked, rows.map(single));
  for (const row of rows) assert.ok(Math.abs(Math.hypot(...row) - 1) < 1e-5);
  assert.notDeepEqual(rows[0], rows[1]);
  assert.deepEqual(decoded.data.map((one) => one.index), [0, 1]);
  assert.ok(decoded.usage.total_tokens > 0);
});

test("errors of embeddings are typed", async () => {
  const embed = (model, input) => client.embeddings.create({ model, input });
  await assert.rejects(embed("all-minilm", ""), OpenAI.BadRequestError);
  await assert.rejects(embed("nobody", "dog"), OpenAI.NotFoundError);
  await assert.rejects(embed("smollm2", "dog"), (error) => error.code === "invalid_embedding_model");
});

test("a prompt over the context is a bad request with both numbers", async () => {
  for (const stream of [false, true]) {
    const messages = [{ role: "user", content: "word ".repeat(3000) }];
    await assert.rejects(client.chat.completions.create({ model: "smollm2", messages, stream }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, error);
      assert.equal(error.code, "context_length_exceeded");
      assert.match(error.message, /maximum context length is 2048 tokens/);
      return true;
    });
  }
});

test("each model is listed and found by each of its names", async () => {
  const listed = new Map();
  for await (const model of client.models.list()) listed.set(model.id, model);
  for (const [name, model] of listed) assert.deepEqual({ ...(await client.models.retrieve(name)) }, model);
  assert.ok(listed.has((await client.models.retrieve("smollm2")).id));
});
