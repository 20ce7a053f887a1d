"""TypeScript on QuickJS, which is WebAssembly, which runs under wasmtime in worker processes of ours."""
