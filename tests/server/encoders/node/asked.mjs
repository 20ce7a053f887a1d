// What every script begins with: the packages that were installed for the tests, the JSON argument, and a `fetch` whose
// next response can be cut off after a number of chunks.
import { createRequire } from "node:module";

export const load = createRequire(`${process.argv[2]}/tests.js`);
export const asked = JSON.parse(process.argv[3]);
export const headers = { authorization: `Bearer ${asked.token}` };
export const print = (value) => process.stdout.write(JSON.stringify(value));

let cut = Infinity;
export const cutNext = (chunks) => {
  cut = chunks;
};
export const requests = [];
export const cuttingFetch = async (url, options) => {
  const response = await fetch(url, options);
  requests.push({ status: response.status, after: new Headers(options.headers).get("last-event-id") });
  if (!Number.isFinite(cut) || !response.body) return response;
  let left = cut;
  cut = Infinity;
  const reader = response.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      controller.enqueue(value);
      if (--left === 0) {
        await reader.cancel();
        controller.error(new TypeError("network error"));
      }
    },
  });
  const shown = new Response(body, { status: response.status, headers: response.headers });
  Object.defineProperty(shown, "url", { value: response.url });
  return shown;
};
