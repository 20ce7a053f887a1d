// One chat with the AI SDK's `AbstractChat` and its transport. `steps` are what a person does in it.
import { asked, cutNext, cuttingFetch, headers, load, print, requests } from "./asked.mjs";

const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } = load("ai");

class State {
  constructor(messages) {
    this.messages = messages;
    this.status = "ready";
    this.error = undefined;
    this.snapshot = (value) => structuredClone(value);
  }
  pushMessage(message) {
    this.messages = [...this.messages, message];
  }
  popMessage() {
    this.messages = this.messages.slice(0, -1);
  }
  replaceMessage(index, message) {
    this.messages = this.messages.map((one, at) => (at === index ? structuredClone(message) : one));
  }
}
class Chat extends AbstractChat {}

const state = new State(asked.messages ?? []);
const errors = [];
const chat = new Chat({
  id: asked.chat,
  state,
  transport: new DefaultChatTransport({ api: `${asked.url}/vercel/chat`, headers, fetch: cuttingFetch }),
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  onError: (error) => errors.push(String(error)),
});
for (const step of asked.steps) {
  if (step.cut) cutNext(step.cut);
  if (step.say) await chat.sendMessage({ text: step.say });
  if (step.resume) await chat.resumeStream();
  if (step.approve !== undefined) {
    const part = chat.messages.at(-1).parts.find((one) => one.state === "approval-requested");
    await chat.addToolApprovalResponse({ id: part.approval.id, approved: step.approve, reason: step.reason });
    while (chat.status !== "ready" && chat.status !== "error") await new Promise((go) => setTimeout(go, 20));
  }
}
print({ messages: chat.messages, status: chat.status, errors, statuses: requests.map((one) => one.status) });
