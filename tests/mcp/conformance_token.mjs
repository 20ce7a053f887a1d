// Adds the token of `standfast mcp http` to each request of the conformance suite, which has no option for it.
import { createRequire } from 'node:module';
import { argv, env } from 'node:process';

const { getGlobalDispatcher, setGlobalDispatcher } = createRequire(argv[1])('undici');

const withToken = (dispatch) => (options, handler) => {
  const value = `Bearer ${env.STANDFAST_MCP_TOKEN}`;
  const headers = Array.isArray(options.headers)
    ? [...options.headers, 'authorization', value]
    : { ...(options.headers ?? {}), authorization: value };
  return dispatch({ ...options, headers }, handler);
};

if (env.STANDFAST_MCP_TOKEN) setGlobalDispatcher(getGlobalDispatcher().compose(withToken));
