// What every guest has beside the standard library of the language.
interface Console {
  log(...values: any[]): void;
  info(...values: any[]): void;
  warn(...values: any[]): void;
  error(...values: any[]): void;
  debug(...values: any[]): void;
  [method: string]: (...values: any[]) => void;
}
declare var console: Console;
declare function setTimeout(callback: (...args: any[]) => void, ms?: number, ...args: any[]): any;
declare function setInterval(callback: (...args: any[]) => void, ms?: number, ...args: any[]): any;
declare function setImmediate(callback: (...args: any[]) => void, ...args: any[]): any;
declare function clearTimeout(timer?: any): void;
declare function clearInterval(timer?: any): void;
declare function queueMicrotask(callback: () => void): void;
declare function structuredClone<T>(value: T, options?: any): T;
declare function atob(text: string): string;
declare function btoa(text: string): string;
declare var performance: { now(): number; [key: string]: any };
declare var crypto: { randomUUID(): string; getRandomValues<T>(array: T): T; [key: string]: any };
declare class TextEncoder { readonly encoding: string; encode(text?: string): Uint8Array; [key: string]: any }
declare class TextDecoder {
  constructor(label?: string, options?: any);
  readonly encoding: string;
  decode(bytes?: any, options?: any): string;
  [key: string]: any;
}
declare class URLSearchParams {
  constructor(init?: any);
  append(name: string, value: any): void;
  delete(name: string, value?: any): void;
  get(name: string): string | null;
  getAll(name: string): string[];
  has(name: string, value?: any): boolean;
  set(name: string, value: any): void;
  sort(): void;
  toString(): string;
  forEach(callback: (value: string, key: string, parent: URLSearchParams) => void): void;
  keys(): IterableIterator<string>;
  values(): IterableIterator<string>;
  entries(): IterableIterator<[string, string]>;
  [Symbol.iterator](): IterableIterator<[string, string]>;
  readonly size: number;
}
declare class URL {
  constructor(url: any, base?: any);
  static canParse(url: any, base?: any): boolean;
  static parse(url: any, base?: any): URL | null;
  hash: string; host: string; hostname: string; href: string; password: string; pathname: string; port: string;
  protocol: string; search: string; username: string;
  readonly origin: string;
  readonly searchParams: URLSearchParams;
  toString(): string;
  toJSON(): string;
}
declare class DOMException extends Error { constructor(message?: string, name?: string); readonly code: number }
declare var result: any;
