// One line of JSON for each case: its name, and what went wrong if something did.
import { inspect } from "node:util";

export default async function* report(events) {
  for await (const { type, data } of events) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const error = type === "test:fail" ? inspect(data.details.error.cause ?? data.details.error) : null;
    yield `${JSON.stringify({ name: data.name, error })}\n`;
  }
}
