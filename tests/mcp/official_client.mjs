// A client made with the official TypeScript SDK. The plan comes as JSON on argv, the outcome leaves as JSON on stdout.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const plan = JSON.parse(process.argv[2]);
const { resolve } = createRequire(pathToFileURL(`${plan.modules}/`));
const { Client, StreamableHTTPClientTransport } = await import(
  pathToFileURL(resolve('@modelcontextprotocol/client')).href
);
const { StdioClientTransport } = await import(pathToFileURL(resolve('@modelcontextprotocol/client/stdio')).href);

const transport = plan.url
  ? new StreamableHTTPClientTransport(new URL(plan.url), {
      requestInit: { headers: { Authorization: `Bearer ${plan.token}` } },
    })
  : new StdioClientTransport({ command: plan.command[0], args: plan.command.slice(1), env: plan.env });

const client = new Client(
  { name: 'typescript', version: '1.0.0' },
  {
    capabilities: plan.elicit ? { elicitation: { form: {} } } : {},
    versionNegotiation: { mode: plan.revision === '2025-11-25' ? 'legacy' : { pin: plan.revision } },
  },
);
const asked = [];
if (plan.elicit) {
  client.setRequestHandler('elicitation/create', async (request) => {
    asked.push(request.params.message);
    return { action: 'accept', content: { approve: true } };
  });
}
await client.connect(transport, { timeout: 240000 });
const results = [];
for (const call of plan.calls) results.push(await client.callTool(call, { timeout: 240000 }));
await client.close();
console.log(JSON.stringify({ asked, results }));
