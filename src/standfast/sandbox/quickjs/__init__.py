"""TypeScript on QuickJS, compiled to WebAssembly and run by wasmtime in worker processes."""
