// Runs of one thread with AG-UI's HttpAgent. Each of `runs` is a message, or answers to interrupts: to all of the
// last run (`answer`), or by id (`resume`). `cut` closes the connection after that many events.
import { asked, headers, load, print } from "./asked.mjs";

const { HttpAgent } = load("@ag-ui/client");
const agent = new HttpAgent({ url: `${asked.url}/ag-ui`, headers, threadId: asked.thread, initialState: asked.state });
const runs = [];
for (const run of asked.runs) {
  const events = [];
  const seen = { events, interrupts: [], outcome: null };
  if (run.say) agent.addMessage({ id: `u${runs.length}`, role: "user", content: run.say });
  const parameters = { runId: run.id ?? `run-${runs.length}` };
  if (run.answer) {
    parameters.resume = runs.at(-1).interrupts.map((one) => ({ interruptId: one.id, ...run.answer }));
  }
  if (run.resume) parameters.resume = run.resume;
  try {
    const { result, newMessages } = await agent.runAgent(parameters, {
      onEvent: ({ event }) => {
        events.push(event);
        if (events.length === run.cut) agent.abortRun();
      },
      onRunFinishedEvent: ({ event }) => {
        seen.outcome = event.outcome;
        seen.interrupts = event.outcome?.interrupts ?? [];
      },
    });
    Object.assign(seen, { result, newMessages });
  } catch (error) {
    seen.error = String(error);
  }
  runs.push(seen);
}
print({ runs, messages: agent.messages, state: agent.state });
