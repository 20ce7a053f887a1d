// Reads a stream with npm's EventSource while a turn runs, until it is committed; the first connection is cut off.
import { asked, cutNext, cuttingFetch, headers, load, print, requests } from "./asked.mjs";

const { EventSource } = load("eventsource");
const events = [];
const alive = setInterval(() => {}, 1000); // the timer of a reconnect does not keep Node running
cutNext(asked.cut);
const source = new EventSource(`${asked.url}${asked.path}`, {
  fetch: (url, options) => cuttingFetch(url, { ...options, headers: { ...options.headers, ...headers } }),
});
await new Promise((done) => {
  for (const name of ["turn_began", "text_streamed", "turn_committed", "gap", "session_event"]) {
    source.addEventListener(name, (event) => {
      const data = JSON.parse(event.data);
      const shown = data.event ?? data;
      events.push(shown);
      if (shown.type === "turn_committed") done();
    });
  }
  source.addEventListener("open", () => {
    if (requests.length > 1) return;
    const body = JSON.stringify({ input: asked.say });
    fetch(`${asked.url}${asked.turns}`, {
      method: "POST",
      headers: { ...headers, "content-type": "application/json" },
      body,
    });
  });
});
source.close();
clearInterval(alive);
print({ events, requests });
