// What guest code finds when it starts, and the bridge to the host.
//
// The bridge keeps everything that a run is about in the guest: calls that were made, promises that wait for
// their results, what was printed. The host looks at it with one `poll` after every entry, so the guest's
// memory is the whole of a run at any moment between two entries.
//
// Rules
// 1. The bridge uses nothing that guest code can replace: functions it needs are taken before any guest code
//    runs, and it keeps its data in strings, in Maps with their own methods, and in objects without prototype.
// 2. Guest code may fool itself; what it tells the host is text that the host reads as untrusted.
// 3. All of this becomes one line before it runs, so that the lines of later code are told apart from it: every
//    statement ends with a semicolon, and a comment has its line to itself.
(function (host) {
  "use strict";
  const G = globalThis;
  const { apply, ownKeys, defineProperty, deleteProperty, getOwnPropertyDescriptor, getPrototypeOf } = Reflect;
  const bindCall = Function.prototype.bind.bind(Function.prototype.call);
  const uncurry = (f) => bindCall(f);
  const $Promise = Promise, $Error = Error, $Map = Map, $Set = Set, $String = String, $Date = Date;
  const $Object = Object, $Uint8Array = Uint8Array, $DOMException = DOMException, $now = Date.now;
  const $TypeError = TypeError, $RangeError = RangeError, $ReferenceError = ReferenceError;
  const { stringify, parse } = JSON;
  const { keys, create, setPrototypeOf, is } = Object;
  const { isArray, from: arrayFrom } = Array;
  const { imul, floor, min, trunc } = Math;
  const { isFinite: finite, isSafeInteger, parseInt: toInt } = Number;
  const mapGet = uncurry(Map.prototype.get), mapSet = uncurry(Map.prototype.set);
  const mapDelete = uncurry(Map.prototype.delete), mapEach = uncurry(Map.prototype.forEach);
  const mapClear = uncurry(Map.prototype.clear), mapHas = uncurry(Map.prototype.has);
  const mapSize = uncurry(getOwnPropertyDescriptor(Map.prototype, "size").get);
  const setHas = uncurry(Set.prototype.has), setAdd = uncurry(Set.prototype.add);
  const setDelete = uncurry(Set.prototype.delete), setEach = uncurry(Set.prototype.forEach);
  const setSize = uncurry(getOwnPropertyDescriptor(Set.prototype, "size").get);
  const weakGet = uncurry(WeakMap.prototype.get), weakSet = uncurry(WeakMap.prototype.set);
  const slice = uncurry(String.prototype.slice), indexOf = uncurry(String.prototype.indexOf);
  const codeAt = uncurry(String.prototype.charCodeAt), replace = uncurry(String.prototype.replaceAll);
  const join = uncurry(Array.prototype.join), sort = uncurry(Array.prototype.sort);
  const iso = uncurry(Date.prototype.toISOString), time = uncurry(Date.prototype.getTime);
  const wellFormed = uncurry(String.prototype.isWellFormed), hasOwn = Object.hasOwn;
  const repeat = uncurry(String.prototype.repeat), padStart = uncurry(String.prototype.padStart);
  const regexText = uncurry(RegExp.prototype.toString), errorText = uncurry(Error.prototype.toString);
  const functionText = uncurry(Function.prototype.toString), radix = uncurry(Number.prototype.toString);
  const fromCodes = String.fromCharCode, symbolText = uncurry(Symbol.prototype.toString);
  const isErrorObject = Error.isError ?? ((v) => v instanceof $Error);
  const isView = ArrayBuffer.isView;
  const typedTag = uncurry(getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get);
  const typedLength = uncurry(getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), "length").get);
  // It would be called with the bridge's own functions.
  deleteProperty(Error, "prepareStackTrace");
  const errorTypes = create(null);
  for (const one of [EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError])
    errorTypes[one.name] = one;

  const put = (target, name, value, enumerable = false) =>
    defineProperty(target, name, { __proto__: null, value, writable: true, configurable: true, enumerable });
  const attempt = (f, other) => {
    try {
      return f();
    } catch {
      return other;
    }
  };

  // ── values as JSON ─────────────────────────────────────────────────────────────────────────────

  // the type of the first part that has no JSON form
  let problem = null;
  // the objects around the one that is looked at, where they are many
  let path = null;
  const objectProto = $Object.prototype, dateProto = $Date.prototype;

  const typeName = (v) => {
    if (v === null) return "null";
    if (typeof v === "number") return $String(v);
    if (typeof v !== "object") return typeof v;
    if (isErrorObject(v)) return attempt(() => $String(v.name), "Error");
    const maker = attempt(() => getPrototypeOf(v)?.constructor, null);
    const name = typeof maker === "function" ? attempt(() => getOwnPropertyDescriptor(maker, "name")?.value) : "";
    return typeof name === "string" && name ? name : "object";
  };
  const foreign = (what) => {
    problem ??= what;
    return "null";
  };
  // Half of a surrogate pair is shown as its escape: text that leaves the guest is Unicode.
  const escaped = (text) => {
    let shown = "";
    for (let i = 0; i < text.length; i++) {
      const pair = i + 1 < text.length ? text[i] + text[i + 1] : text[i];
      if (wellFormed(text[i])) shown += text[i];
      else if (wellFormed(pair)) shown += text[i] + text[++i];
      else shown += slice(stringify(text[i]), 1, -1);
    }
    return shown;
  };
  const safe = (text) => stringify(wellFormed(text) ? text : escaped(text));
  const textOf = (v) => (wellFormed(v) ? stringify(v) : foreign("a string with a lone surrogate"));

  const listOf = (v, depth) => {
    let text = "[";
    for (let i = 0; i < v.length && problem === null; i++) text += (i ? "," : "") + encode(v[i], depth);
    return text + "]";
  };
  const recordOf = (v, depth) => {
    const names = keys(v);
    let text = "{";
    for (let i = 0; i < names.length && problem === null; i++) {
      const value = v[names[i]];
      if (value === undefined) continue;
      text += (text === "{" ? "" : ",") + textOf(names[i]) + ":" + encode(value, depth);
    }
    return text + "}";
  };
  const inside = (v, depth, write) => {
    if (depth < 32) return write(v, depth + 1);
    path ??= new $Set();
    if (setHas(path, v)) return foreign("a cycle");
    setAdd(path, v);
    const text = write(v, depth + 1);
    setDelete(path, v);
    return text;
  };
  const encode = (v, depth) => {
    switch (typeof v) {
      case "string":
        return textOf(v);
      case "number":
        return finite(v) ? $String(v) : foreign($String(v));
      case "boolean":
        return v ? "true" : "false";
      case "undefined":
        return "null";
      case "object":
        break;
      default:
        return foreign(typeof v);
    }
    if (v === null) return "null";
    if (isArray(v)) return inside(v, depth, listOf);
    const proto = getPrototypeOf(v);
    if (proto === objectProto || proto === null) return inside(v, depth, recordOf);
    if (proto === dateProto) return finite(time(v)) ? stringify(iso(v)) : foreign("an invalid Date");
    const toJson = hasOwn(proto, "toJSON") ? v.toJSON : undefined;
    if (typeof toJson === "function") return encode(apply(toJson, v, [""]), depth + 1);
    return foreign(typeName(v));
  };
  const toJson = (v) => {
    problem = path = null;
    try {
      return encode(v, 0);
    } catch (error) {
      return foreign(error instanceof $RangeError ? "a value nested too deeply" : typeName(v));
    }
  };

  // ── calls, timers, and what is printed ─────────────────────────────────────────────────────────

  let nextId = 1;
  // calls that the host does not know of yet, as JSON
  const fresh = new $Map();
  // what is to be done with the result of a call, by its id
  const waiting = new $Map();
  // timers that have not fired, by their id
  const timers = new $Map();
  // timers that need no clock
  const soon = new $Map();
  // rejected promises that no code has handled
  const unhandled = new $Map();
  // which of the host's errors an exception is
  const known = new WeakMap();
  let main = null, value, uncaught = null;
  let cap = 0, printed = 0, flooded = 0, out = "", err = "", started = 0;

  // the stack, innermost first; the host finds the line of a call in its beginning
  const MOST_PLACE = 1000;
  const here = () => {
    const place = new $Error().stack;
    return typeof place === "string" ? place : "";
  };
  const call = (name, args) => {
    const id = nextId++;
    let count = args.length;
    while (count && args[count - 1] === undefined) count--;
    args.length = count;
    const text = toJson(args);
    const tail = problem === null ? text + ",null" : "[]," + textOf(problem);
    const place = here();
    mapSet(fresh, id, '[' + id + ',' + textOf(name) + ',' + tail + ',' + safe(slice(place, 0, MOST_PLACE)) + ']');
    return new $Promise((resolve, reject) => {
      mapSet(waiting, id, { __proto__: null, resolve, reject, place });
    });
  };
  const tool = (name) => {
    const made = ({ [name]: (...args) => call(name, args) })[name];
    const text = "function " + name + "() { [native code] }";
    put(made, "toString", () => text);
    return made;
  };

  const failure = (type, message, code, place, error) => {
    const made = new (errorTypes[type] ?? $Error)(message);
    if (made.name !== type) put(made, "name", type);
    if (code !== null) put(made, "code", code, true);
    put(made, "stack", place);
    weakSet(known, made, error);
    return made;
  };
  const settle = (text) => {
    // [id, failed, value or [type, message, code, error]]
    const a = parse(text);
    const timer = mapGet(timers, a[0]);
    if (timer !== undefined) return ring(timer);
    const waits = mapGet(waiting, a[0]);
    if (waits === undefined) return;
    mapDelete(waiting, a[0]);
    if (!a[1]) return void waits.resolve(a[2]);
    waits.reject(failure(a[2][0], a[2][1], a[2][2], waits.place, a[2][3]));
  };

  const print = (stream, text) => {
    const line = text + "\n";
    printed += line.length;
    const room = cap - flooded;
    if (room > 0) {
      const kept = line.length > room ? slice(line, 0, room) : line;
      flooded += kept.length;
      if (stream === 1) out += kept;
      else err += kept;
    }
    if (printed > 16 * cap) host("flood");
  };

  const arm = (timer) => {
    mapDelete(soon, timer.id);
    if (!(timer.ms > 0)) return void mapSet(soon, timer.id, timer);
    timer.call = nextId++;
    timer.due = $now() + timer.ms;
    mapSet(timers, timer.call, timer);
    mapSet(fresh, timer.call, '[' + timer.call + ',null,' + $String(timer.ms / 1000) + ',null,' + timer.place + ']');
  };
  const disarm = (timer) => {
    mapDelete(soon, timer.id);
    mapDelete(timers, timer.call);
    mapDelete(fresh, timer.call);
    mapDelete(handles, timer.id);
  };
  const fire = (timer) => {
    mapDelete(soon, timer.id);
    mapDelete(timers, timer.call);
    if (timer.again) arm(timer);
    else mapDelete(handles, timer.id);
    guarded(timer.f, timer.args);
  };
  // A moment has come: what was to come no later fires first, in whatever order the answers are.
  const ring = (timer) => {
    let next;
    do {
      next = timer;
      mapEach(timers, (one) => {
        if (one.due < next.due || (one.due === next.due && one.id < next.id)) next = one;
      });
      mapDelete(timers, next.call);
      mapDelete(fresh, next.call);
      mapSet(soon, next.id, next);
    } while (next !== timer);
  };
  const guarded = (f, args) => {
    try {
      apply(f, undefined, args);
    } catch (error) {
      uncaught ??= { __proto__: null, error };
    }
  };
  const handles = new $Map();
  let nextTimer = 1;
  const schedule = (again) => (f, ms, ...args) => {
    if (typeof f !== "function") throw new $TypeError("the first argument of a timer must be a function");
    const delay = +ms;
    const wait = finite(delay) && delay > 0 ? delay : again ? 1 : 0;
    const timer = { __proto__: null, id: nextTimer++, call: 0, f, args, again, ms: wait, due: 0, place: safe(slice(here(), 0, MOST_PLACE)) };
    mapSet(handles, timer.id, timer);
    arm(timer);
    return timer.id;
  };
  const cancel = (id) => {
    const timer = mapGet(handles, +id);
    if (timer !== undefined) disarm(timer);
  };

  // ── what the host calls ────────────────────────────────────────────────────────────────────────

  const tools = create(objectProto);
  setPrototypeOf(G, tools);
  let toolNames = "";
  // the inputs of this run, with what they hide
  let hidden = null;
  // `result`, where this run may bind it
  let bound = null;
  const builtin = new $Set();

  const offer = (joined) => {
    if (joined === toolNames) return;
    toolNames = joined;
    const names = parse(joined), old = ownKeys(tools);
    for (let i = 0; i < old.length; i++) deleteProperty(tools, old[i]);
    for (let i = 0; i < names.length; i++) {
      const made = tool(names[i]);
      put(tools, names[i], made);
      if (setHas(builtin, names[i])) put(G, names[i], made);
    }
  };
  const lazily = (name) =>
    defineProperty(tools, name, {
      __proto__: null,
      configurable: true,
      get() {
        const text = host("load:" + name);
        if (text === "") throw new $ReferenceError(name + " is not defined");
        const loaded = read(text);
        put(tools, name, loaded);
        return loaded;
      },
      set(v) {
        put(G, name, v, true);
      },
    });
  const read = (text) => {
    const kind = codeAt(text, 0);
    if (kind === 98) return bytesOf(slice(text, 1));
    if (kind !== 118) return parse(text);
    const a = parse(slice(text, 1));
    return withBytes(a[1], a[0]);
  };
  const withBytes = (v, mark) => {
    if (typeof v !== "object" || v === null) return v;
    if (!isArray(v) && hasOwn(v, mark)) return bytesOf(v[mark]);
    const names = keys(v);
    for (let i = 0; i < names.length; i++) put(v, names[i], withBytes(v[names[i]], mark), true);
    return v;
  };
  const bytesOf = (text) => {
    const bytes = new $Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = codeAt(text, i);
    return bytes;
  };

  let lazies = null;
  const open = (functions, text) => {
    // [lazy names, whether `result` may be bound, output cap, time]
    const a = parse(text);
    nextId = 1;
    printed = flooded = 0;
    out = err = "";
    cap = a[2];
    main = uncaught = bound = null;
    value = undefined;
    pool = "";
    chance = null;
    started = a[3];
    hidden = new $Map();
    offer(functions);
    lazies = a[0];
    for (let i = 0; i < lazies.length; i++) if (!hasOwn(tools, lazies[i])) lazily(lazies[i]);
    if (a[1]) watchResult();
  };
  const watchResult = () => {
    const own = getOwnPropertyDescriptor(G, "result");
    bound = { __proto__: null, was: own !== undefined, set: false, value: own?.value };
    if (own !== undefined && !own.configurable) return;
    defineProperty(G, "result", {
      __proto__: null, configurable: true, enumerable: true,
      get: () => bound.value,
      set(v) {
        bound.set = true;
        bound.value = v;
      },
    });
  };
  const unwatchResult = () => {
    const own = getOwnPropertyDescriptor(G, "result");
    if (bound === null) return;
    if (own?.get === undefined) {
      bound.set = own !== undefined && own.value !== bound.value;
      bound.value = own?.value;
    } else if (bound.set || bound.was) put(G, "result", bound.value, true);
    else deleteProperty(G, "result");
  };
  const bind = (name, text) => {
    const own = getOwnPropertyDescriptor(G, name);
    mapSet(hidden, name, own);
    if (own !== undefined && !own.configurable) defineProperty(G, name, { __proto__: null, value: read(text) });
    else
      defineProperty(G, name, {
        __proto__: null, value: read(text), writable: false, configurable: true, enumerable: true,
      });
  };
  const begin = async (promise) => {
    main = { __proto__: null, state: "waits", error: null };
    try {
      value = await (await promise).value;
      main.state = "ended";
    } catch (error) {
      main.state = "failed";
      main.error = error;
    }
  };

  const describe = (error) => {
    const isError = typeof error === "object" && error !== null && isErrorObject(error);
    const name = isError ? attempt(() => $String(error.name), "Error") : "";
    const message = isError ? attempt(() => $String(error.message), "") : inspectSafely(error);
    const stack = isError ? attempt(() => $String(error.stack), "") : "";
    const ours = isError ? weakGet(known, error) ?? null : null;
    return "[" + plain(name) + "," + plain(message) + "," + plain(stack) + "," + toJson(ours) + "]";
  };
  const plain = (text) => safe(slice(text, 0, 10_000));
  const inspectSafely = (v) => attempt(() => inspect(v, 2), typeof v);

  const outcome = () => {
    if (uncaught !== null) return '"error",' + describe(uncaught.error);
    if (main.state === "failed") return '"error",' + describe(main.error);
    const open = mapSize(waiting) > 0;
    if (main.state === "waits") return open || mapSize(timers) > 0 ? '"waits",null' : stuck();
    if (open) return '"waits",null';
    if (mapSize(unhandled) > 0) return stuck();
    if (bound !== null) unwatchResult();
    const text = toJson(bound !== null && bound.set ? bound.value : value);
    bound = null;
    return problem === null ? '"value",' + text : '"foreign",' + textOf(problem);
  };
  const stuck = () => {
    let first = null;
    mapEach(unhandled, (error) => (first ??= { __proto__: null, error }));
    return first === null ? '"stuck",null' : '"error",' + describe(first.error);
  };
  // A run that has ended is closed at once; the names that are bound then come last.
  const poll = () => {
    if (mapSize(soon) > 0 && main.state === "waits" && uncaught === null) {
      let first = null;
      mapEach(soon, (timer) => (first ??= timer));
      fire(first);
      return "";
    }
    let calls = "";
    mapEach(fresh, (text) => (calls += (calls ? "," : "") + text));
    mapClear(fresh);
    const told = outcome();
    const text = "[[" + calls + "]," + safe(out) + "," + safe(err) + "," + printed + "," + told;
    out = err = "";
    const waits = told === '"waits",null' || told === '"stuck",null';
    return waits ? text + "]" : text + "," + close() + "]";
  };

  const rest = () => "[[]," + safe(out) + "," + safe(err) + "," + printed + ',"stuck",null]';

  const close = () => {
    unwatchResult();
    bound = null;
    if (hidden !== null)
      mapEach(hidden, (own, name) => {
        // What was declared cannot be deleted, but it can be as it was.
        if (!deleteProperty(G, name)) defineProperty(G, name, { __proto__: null, value: own?.value });
        else if (own !== undefined) defineProperty(G, name, own);
      });
    if (lazies !== null)
      for (let i = 0; i < lazies.length; i++) {
        const own = getOwnPropertyDescriptor(tools, lazies[i]);
        if (own !== undefined && indexOf(toolNames, textOf(lazies[i])) < 0) deleteProperty(tools, lazies[i]);
      }
    hidden = lazies = main = uncaught = chance = null;
    value = undefined;
    groups = "";
    mapClear(fresh), mapClear(waiting), mapClear(timers);
    mapClear(soon), mapClear(handles), mapClear(unhandled);
    return names();
  };
  const names = () => {
    const all = ownKeys(G), count = setSize(builtin);
    // Keys are in the order in which they were made: where none of ours was deleted, they are the first.
    const start = all.length >= count && all[count - 1] === lastBuiltin ? count : 0;
    let text = "";
    for (let i = start; i < all.length; i++)
      if (typeof all[i] === "string" && !setHas(builtin, all[i])) text += (text ? "," : "") + safe(all[i]);
    return "[" + text + "]";
  };
  const overflow = () => {
    throw new $RangeError("Maximum call stack size exceeded");
  };
  const rejected = (promise, reason, handled) => {
    if (handled) mapDelete(unhandled, promise);
    else mapSet(unhandled, promise, reason);
  };

  // ── chance and time ────────────────────────────────────────────────────────────────────────────

  let pool = "", draws = 0, chance = null;
  const randomByte = () => {
    if (pool === "") pool = host("draw:" + draws++);
    const byte = toInt(slice(pool, 0, 2), 16);
    pool = slice(pool, 2);
    return byte;
  };
  const word = () => (randomByte() << 24) | (randomByte() << 16) | (randomByte() << 8) | randomByte();
  const random32 = () => {
    // sfc32 (C. Doty-Humphrey, public domain)
    chance ??= { __proto__: null, a: word(), b: word(), c: word(), d: 1 };
    const t = (((chance.a + chance.b) | 0) + chance.d) | 0;
    chance.d = (chance.d + 1) | 0;
    chance.a = chance.b ^ (chance.b >>> 9);
    chance.b = (chance.c + (chance.c << 3)) | 0;
    chance.c = (((chance.c << 21) | (chance.c >>> 11)) + t) | 0;
    return t >>> 0;
  };
  put(Math, "random", function random() {
    return ((random32() >>> 5) * 0x4000000 + (random32() >>> 6)) / 0x20000000000000;
  });
  class Crypto {
    getRandomValues(array) {
      const tag = isView(array) ? typedTag(array) : undefined;
      if (tag === undefined || indexOf(tag, "Float") === 0)
        throw new $DOMException("an integer typed array is needed", "TypeMismatchError");
      if (array.byteLength > 65536) throw new $DOMException("at most 65536 bytes at once", "QuotaExceededError");
      const bytes = new $Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      for (let i = 0; i < bytes.length; i++) bytes[i] = randomByte();
      return array;
    }
    randomUUID() {
      let text = "";
      for (let i = 0; i < 16; i++) {
        let byte = randomByte();
        if (i === 6) byte = (byte & 15) | 64;
        if (i === 8) byte = (byte & 63) | 128;
        text += (i === 4 || i === 6 || i === 8 || i === 10 ? "-" : "") + padStart(radix(byte, 16), 2, "0");
      }
      return text;
    }
  }
  put(G, "crypto", new Crypto());
  put(G, "performance", { now: () => $now() - started, get timeOrigin() { return started; } });
  put(G, "setTimeout", schedule(false));
  put(G, "setInterval", schedule(true));
  const immediately = schedule(false);
  put(G, "setImmediate", (f, a, b) => immediately(f, 0, a, b));
  put(G, "clearTimeout", cancel);
  put(G, "clearInterval", cancel);
  put(G, "clearImmediate", cancel);
  const later = G.queueMicrotask;
  put(G, "queueMicrotask", function queueMicrotask(f) {
    if (typeof f !== "function") throw new $TypeError("the argument of queueMicrotask must be a function");
    later(() => guarded(f, []));
  });

  // ── console ────────────────────────────────────────────────────────────────────────────────────

  const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;
  const matches = uncurry(RegExp.prototype.test);
  const quote = (text) => {
    const mark = indexOf(text, "'") < 0 ? "'" : indexOf(text, '"') < 0 ? '"' : indexOf(text, "`") < 0 ? "`" : "'";
    const escaped = replace(slice(stringify(text), 1, -1), '\\"', '"');
    return mark + (mark === "'" ? replace(escaped, "'", "\\'") : escaped) + mark;
  };
  const keyText = (key) =>
    typeof key === "symbol" ? "[" + symbolText(key) + "]" : matches(IDENTIFIER, key) ? key : quote(key);
  const functionName = (f) => {
    const text = attempt(() => functionText(f), "");
    const name = attempt(() => $String(f.name), "");
    if (indexOf(text, "class") === 0) {
      const parent = attempt(() => getPrototypeOf(f).name, "");
      return "[class " + (name || "(anonymous)") + (parent ? " extends " + parent : "") + "]";
    }
    const kind = indexOf(text, "async") === 0 ? "AsyncFunction" : "Function";
    return "[" + kind + (name ? ": " + name : " (anonymous)") + "]";
  };
  const primitive = (v, top) => {
    switch (typeof v) {
      case "string":
        return top ? v : quote(v);
      case "number":
        return is(v, -0) ? "-0" : $String(v);
      case "bigint":
        return $String(v) + "n";
      case "symbol":
        return symbolText(v);
      default:
        return $String(v);
    }
  };
  const fold = (open, parts, close, indent) => {
    if (parts.length === 0) return open + close;
    const line = open + " " + join(parts, ", ") + " " + close;
    if (line.length <= 76 - indent.length && indexOf(line, "\n") < 0) return line;
    return open + "\n" + indent + "  " + join(parts, ",\n" + indent + "  ") + "\n" + indent + close;
  };
  const push = (list, item) => put(list, list.length, item, true);
  const properties = (v, parts, view, skip) => {
    const all = ownKeys(v);
    for (let i = 0; i < all.length; i++) {
      const own = getOwnPropertyDescriptor(v, all[i]);
      if (own === undefined || !own.enumerable || (skip && typeof all[i] === "string" && isSafeInteger(+all[i])))
        continue;
      const text = own.get ? (own.set ? "[Getter/Setter]" : "[Getter]") : own.set ? "[Setter]" : view(own.value);
      push(parts, keyText(all[i]) + ": " + text);
    }
  };
  const items = (count, each, parts) => {
    for (let i = 0; i < min(count, 100); i++) push(parts, each(i));
    if (count > 100) push(parts, "... " + (count - 100) + " more item" + (count > 101 ? "s" : ""));
  };
  const inspect = (v, levels, indent = "", around = null) => {
    if (typeof v === "function" && keys(v).length === 0) return functionName(v);
    if (v === null || (typeof v !== "object" && typeof v !== "function")) return primitive(v, false);
    for (let one = around; one !== null; one = one.next) if (one.v === v) return "[Circular *1]";
    const kind = typeName(v), parts = [];
    const inner = { __proto__: null, v, next: around };
    const view = (x) => inspect(x, levels - 1, indent + "  ", inner);
    if (isErrorObject(v)) {
      const stack = attempt(() => v.stack, "");
      properties(v, parts, view, false);
      const shown = attempt(() => errorText(v), "Error") + (typeof stack === "string" && stack ? "\n" + slice(stack, 0, -1) : "");
      return parts.length ? shown + " " + fold("{", parts, "}", indent) : indent === "" ? shown : "[" + shown + "]";
    }
    if (v instanceof $Date) return attempt(() => iso(v), "Invalid Date");
    if (v instanceof RegExp) return attempt(() => regexText(v), "/(?:)/");
    if (levels < 0) return isArray(v) ? "[Array]" : "[" + kind + "]";
    if (isArray(v)) {
      items(v.length, (i) => (i in v ? view(v[i]) : "<empty>"), parts);
      properties(v, parts, view, true);
      return fold((kind === "Array" ? "" : kind + "(" + v.length + ") ") + "[", parts, "]", indent);
    }
    const length = isView(v) ? attempt(() => typedLength(v)) : undefined;
    if (length !== undefined) {
      items(length, (i) => primitive(v[i], false), parts);
      return fold(kind + "(" + length + ") [", parts, "]", indent);
    }
    if (v instanceof $Map && attempt(() => mapSize(v)) !== undefined) {
      mapEach(v, (x, key) => push(parts, view(key) + " => " + view(x)));
      return fold(kind + "(" + mapSize(v) + ") {", parts, "}", indent);
    }
    if (v instanceof $Set && attempt(() => setSize(v)) !== undefined) {
      setEach(v, (x) => push(parts, view(x)));
      return fold(kind + "(" + setSize(v) + ") {", parts, "}", indent);
    }
    properties(v, parts, view, false);
    const proto = getPrototypeOf(v);
    const prefix = typeof v === "function" ? functionName(v) + " " : proto === null ? "[Object: null prototype] "
      : proto === objectProto ? "" : kind + " ";
    return fold(prefix + "{", parts, "}", indent);
  };
  const show = (v) => (typeof v === "string" ? v : attempt(() => inspect(v, 2), "[object]"));
  const substitute = (mark, v) => {
    switch (mark) {
      case "s":
        return typeof v === "object" && v !== null ? inspect(v, 0) : primitive(v, true);
      case "d":
        return typeof v === "object" ? "NaN" : primitive(typeof v === "bigint" ? v : +v, true);
      case "i":
        return typeof v === "object" ? "NaN" : $String(trunc(+v));
      case "f":
        return $String(+v);
      case "j":
        return attempt(() => stringify(v), "[Circular]");
      case "c":
        return "";
      default:
        return inspect(v, 4);
    }
  };
  const format = (args) => {
    let text = "", at = 0;
    if (args.length > 1 && typeof args[0] === "string" && indexOf(args[0], "%") >= 0) {
      const pattern = args[0];
      at = 1;
      for (let i = 0; i < pattern.length; i++) {
        const mark = pattern[i] === "%" ? pattern[i + 1] : undefined;
        if (mark === "%") text += pattern[i++];
        else if (mark !== undefined && indexOf("sdifjoOc", mark) >= 0 && at < args.length) {
          text += substitute(mark, args[at++]);
          i++;
        } else text += pattern[i];
      }
    } else if (args.length > 0) text = show(args[at++]);
    for (; at < args.length; at++) text += " " + show(args[at]);
    return groups === "" ? text : groups + replace(text, "\n", "\n" + groups);
  };
  let groups = "";
  const printer = (stream, name) => ({ [name]: (...args) => print(stream, format(args)) })[name];
  const consoleObject = { __proto__: {} };
  for (const name of ["log", "info", "debug", "dir", "table"]) put(consoleObject, name, printer(1, name), true);
  for (const name of ["warn", "error", "trace"]) put(consoleObject, name, printer(2, name), true);
  const addConsole = (name, f) => put(consoleObject, name, f, true);
  addConsole("dir", (v) => print(1, format([v])));
  addConsole("assert", (ok, ...args) => {
    if (!ok) print(2, "Assertion failed" + (args.length ? ": " + format(args) : ""));
  });
  addConsole("group", (...args) => {
    if (args.length) print(1, format(args));
    groups += "  ";
  });
  addConsole("groupEnd", () => void (groups = slice(groups, 2)));
  put(G, "console", consoleObject);

  // ── text ───────────────────────────────────────────────────────────────────────────────────────

  const utf8 = (text) => {
    const bytes = new $Uint8Array(text.length * 3);
    let n = 0;
    for (let i = 0; i < text.length; i++) {
      let c = codeAt(text, i);
      if (c >= 0xd800 && c < 0xe000) {
        const low = c < 0xdc00 ? codeAt(text, i + 1) : 0;
        if (low >= 0xdc00 && low < 0xe000) {
          c = 0x10000 + ((c - 0xd800) << 10) + low - 0xdc00;
          i++;
        } else c = 0xfffd;
      }
      if (c < 0x80) bytes[n++] = c;
      else if (c < 0x800) (bytes[n++] = 0xc0 | (c >> 6)), (bytes[n++] = 0x80 | (c & 63));
      else {
        if (c < 0x10000) bytes[n++] = 0xe0 | (c >> 12);
        else (bytes[n++] = 0xf0 | (c >> 18)), (bytes[n++] = 0x80 | ((c >> 12) & 63));
        bytes[n++] = 0x80 | ((c >> 6) & 63);
        bytes[n++] = 0x80 | (c & 63);
      }
    }
    return bytes.slice(0, n);
  };
  const fromUtf8 = (bytes, fatal) => {
    let text = "";
    for (let i = 0; i < bytes.length; ) {
      const b = bytes[i++];
      if (b < 0x80) {
        text += fromCodes(b);
        continue;
      }
      const more = b >= 0xc2 && b < 0xe0 ? 1 : b >= 0xe0 && b < 0xf0 ? 2 : b >= 0xf0 && b < 0xf5 ? 3 : 0;
      let c = b & (0x3f >> more), seen = 0;
      for (; seen < more && i < bytes.length; seen++, i++) {
        const low = seen === 0 && b === 0xe0 ? 0xa0 : seen === 0 && b === 0xf0 ? 0x90 : 0x80;
        const high = seen === 0 && b === 0xed ? 0x9f : seen === 0 && b === 0xf4 ? 0x8f : 0xbf;
        if (bytes[i] < low || bytes[i] > high) break;
        c = (c << 6) | (bytes[i] & 63);
      }
      if (more === 0 || seen < more) {
        if (fatal) throw new $TypeError("the bytes are not UTF-8");
        text += "\ufffd";
      } else text += c < 0x10000 ? fromCodes(c) : fromCodes(0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    }
    return text;
  };
  const bytesIn = (source) => {
    if (source === undefined) return new $Uint8Array(0);
    return isView(source) ? new $Uint8Array(source.buffer, source.byteOffset, source.byteLength) : new $Uint8Array(source);
  };
  class TextEncoder {
    get encoding() {
      return "utf-8";
    }
    encode(text = "") {
      return utf8($String(text));
    }
    encodeInto(text, target) {
      let read = 0, written = 0;
      for (const one of $String(text)) {
        const bytes = utf8(one);
        if (written + bytes.length > target.length) break;
        target.set(bytes, written);
        written += bytes.length;
        read += one.length;
      }
      return { read, written };
    }
  }
  class TextDecoder {
    #fatal;
    #keep;
    constructor(label = "utf-8", options = {}) {
      const name = $String(label).trim().toLowerCase();
      if (name !== "utf-8" && name !== "utf8") throw new $RangeError("TextDecoder knows utf-8 only, not " + name);
      this.#fatal = !!options.fatal;
      this.#keep = !!options.ignoreBOM;
    }
    get encoding() {
      return "utf-8";
    }
    get fatal() {
      return this.#fatal;
    }
    get ignoreBOM() {
      return this.#keep;
    }
    decode(source) {
      const text = fromUtf8(bytesIn(source), this.#fatal);
      return !this.#keep && codeAt(text, 0) === 0xfeff ? slice(text, 1) : text;
    }
  }
  put(G, "TextEncoder", TextEncoder);
  put(G, "TextDecoder", TextDecoder);

  // ── URL ────────────────────────────────────────────────────────────────────────────────────────

  const PORTS = { __proto__: null, "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21", "file:": "" };
  const hex = (byte) => "%" + padStart(radix(byte, 16).toUpperCase(), 2, "0");
  const percent = (text, unsafe) => {
    let made = "";
    for (const one of text) {
      const c = codeAt(one, 0);
      if (c > 0x20 && c < 0x7f && indexOf(unsafe, one) < 0) made += one;
      else for (const byte of utf8(one)) made += hex(byte);
    }
    return made;
  };
  const unpercent = (text) => {
    const bytes = utf8(text), made = new $Uint8Array(bytes.length);
    let n = 0;
    for (let i = 0; i < bytes.length; i++) {
      const code = bytes[i] === 37 ? slice(text.length === bytes.length ? text : fromUtf8(bytes.slice(i, i + 3), false), text.length === bytes.length ? i + 1 : 1, text.length === bytes.length ? i + 3 : 3) : "";
      if (code.length === 2 && matches(/^[0-9a-fA-F]{2}$/, code)) (made[n++] = toInt(code, 16)), (i += 2);
      else made[n++] = bytes[i];
    }
    return fromUtf8(made.slice(0, n), false);
  };
  const formText = (text) => replace(percent(text, "!\"#$%&'()+,/:;<=>?@[\\]^`{|}~"), "%20", "+");
  const formParse = (text) => {
    const pairs = [];
    for (const part of text.split("&")) {
      if (!part) continue;
      const at = part.indexOf("=");
      const decode = (x) => unpercent(replace(x, "+", " "));
      pairs.push(at < 0 ? [decode(part), ""] : [decode(part.slice(0, at)), decode(part.slice(at + 1))]);
    }
    return pairs;
  };
  class URLSearchParams {
    #pairs = [];
    #changed = null;
    constructor(init = "") {
      if (typeof init === "object" && init !== null) {
        if (typeof init[Symbol.iterator] === "function")
          for (const pair of init) {
            const both = arrayFrom(pair);
            if (both.length !== 2) throw new $TypeError("each pair must have a name and a value");
            this.#pairs.push([$String(both[0]), $String(both[1])]);
          }
        else for (const key of keys(init)) this.#pairs.push([key, $String(init[key])]);
      } else this.#pairs = formParse($String(init).replace(/^\?/, ""));
    }
    static watch(params, text, changed) {
      params.#changed = null;
      params.#pairs = formParse(text);
      params.#changed = changed;
    }
    #touch() {
      this.#changed?.();
    }
    get size() {
      return this.#pairs.length;
    }
    append(name, value) {
      this.#pairs.push([$String(name), $String(value)]);
      this.#touch();
    }
    delete(name, value) {
      this.#pairs = this.#pairs.filter((p) => p[0] !== $String(name) || (value !== undefined && p[1] !== $String(value)));
      this.#touch();
    }
    get(name) {
      return this.#pairs.find((p) => p[0] === $String(name))?.[1] ?? null;
    }
    getAll(name) {
      return this.#pairs.filter((p) => p[0] === $String(name)).map((p) => p[1]);
    }
    has(name, value) {
      return this.#pairs.some((p) => p[0] === $String(name) && (value === undefined || p[1] === $String(value)));
    }
    set(name, value) {
      const at = this.#pairs.findIndex((p) => p[0] === $String(name));
      if (at < 0) return this.append(name, value);
      this.#pairs = this.#pairs.filter((p, i) => i <= at || p[0] !== $String(name));
      this.#pairs[at] = [$String(name), $String(value)];
      this.#touch();
    }
    sort() {
      this.#pairs.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
      this.#touch();
    }
    forEach(f, self) {
      for (const pair of this.#pairs) apply(f, self, [pair[1], pair[0], this]);
    }
    *entries() {
      for (const pair of this.#pairs) yield [pair[0], pair[1]];
    }
    *keys() {
      for (const pair of this.#pairs) yield pair[0];
    }
    *values() {
      for (const pair of this.#pairs) yield pair[1];
    }
    [Symbol.iterator]() {
      return this.entries();
    }
    toString() {
      return this.#pairs.map((p) => formText(p[0]) + "=" + formText(p[1])).join("&");
    }
  }
  const watchParams = URLSearchParams.watch;
  delete URLSearchParams.watch;

  const invalid = (text) => {
    const error = new $TypeError("Invalid URL");
    put(error, "code", "ERR_INVALID_URL", true);
    put(error, "input", text, true);
    return error;
  };
  const hostOf = (text, special) => {
    if (text.startsWith("[")) {
      if (!/^\[[0-9a-fA-F:.]+\]$/.test(text)) return null;
      return text.toLowerCase();
    }
    if (!special) return /[\s#/<>?@[\\\]^|]/.test(text) ? null : percent(text, "");
    const name = unpercent(text).toLowerCase();
    if (name === "" || /[^\x21-\x7e]|[#%/:<>?@[\\\]^|]/.test(name)) return null;
    const numbers = name.replace(/\.$/, "").split(".");
    if (!/^(0x[0-9a-f]*|\d+)$/.test(numbers[numbers.length - 1])) return name;
    return numbers.length === 4 && numbers.every((n) => /^\d{1,3}$/.test(n) && +n < 256) ? numbers.map(Number).join(".") : null;
  };
  const PATH = ' "#<>?`{}^', QUERY = ' "#<>', FRAGMENT = ' "<>`', LOGIN = ' "#<>?`{}/:;=@[\\]^|';
  const pathOf = (text, base, special) => {
    const made = [...base];
    const parts = (special ? replace(text, "\\", "/") : text).split("/");
    parts.forEach((part, i) => {
      const last = i === parts.length - 1;
      const dots = part.toLowerCase().replaceAll("%2e", ".");
      if (dots === "..") made.pop(), last && made.push("");
      else if (dots === ".") last && made.push("");
      else made.push(percent(part, PATH));
    });
    return made;
  };
  const splitUrl = (text) => {
    const found = /^([^?#]*)(\?[^#]*)?(#.*)?$/s.exec(text);
    return { body: found[1], query: found[2], hash: found[3] };
  };
  const authority = (u, text, special, whole) => {
    const at = text.lastIndexOf("@");
    if (at >= 0) {
      const login = text.slice(0, at), colon = login.indexOf(":");
      u.username = percent(colon < 0 ? login : login.slice(0, colon), LOGIN);
      u.password = colon < 0 ? "" : percent(login.slice(colon + 1), LOGIN);
      text = text.slice(at + 1);
    }
    const port = /:(\d*)$/.exec(text);
    if (port && (port[1] === "" || +port[1] < 65536)) {
      u.port = port[1] === "" || $String(+port[1]) === PORTS[u.protocol] ? "" : $String(+port[1]);
      text = text.slice(0, port.index);
    } else if (/:\d*$/.test(text)) throw invalid(whole);
    const name = text === "" && (!special || u.protocol === "file:") ? "" : hostOf(text, special);
    if (name === null) throw invalid(whole);
    u.hostname = u.protocol === "file:" && name === "localhost" ? "" : name;
    u.host = true;
  };
  const parseUrl = (input, base) => {
    const text = $String(input).replace(/^[\x00-\x20]+|[\x00-\x20]+$|[\t\n\r]/g, "");
    const scheme = /^([A-Za-z][A-Za-z0-9+.-]*):/.exec(text);
    const u = { __proto__: null, protocol: "", username: "", password: "", hostname: "", port: "", path: null, opaque: null, query: "", hash: "", host: false };
    const protocol = scheme ? scheme[1].toLowerCase() + ":" : base?.protocol;
    if (protocol === undefined) throw invalid(text);
    u.protocol = protocol;
    const special = protocol in PORTS;
    const split = splitUrl(scheme ? text.slice(scheme[0].length) : text);
    const body = special ? split.body.replaceAll("\\", "/") : split.body;
    if (split.query !== undefined && split.query !== "?") u.query = "?" + percent(split.query.slice(1), special ? QUERY + "'" : QUERY);
    if (split.hash !== undefined && split.hash !== "#") u.hash = "#" + percent(split.hash.slice(1), FRAGMENT);
    const relative = !scheme || (special && base?.protocol === protocol && !body.startsWith("/"));
    if (relative && base !== undefined) return relativeUrl(u, body, base, split, special, text);
    if (body.startsWith("//") || (special && protocol !== "file:")) {
      const rest = body.replace(special && protocol !== "file:" ? /^\/*/ : /^\/\//, "");
      const end = rest.indexOf("/");
      authority(u, end < 0 ? rest : rest.slice(0, end), special, text);
      u.path = end < 0 ? (special ? [""] : []) : pathOf(rest.slice(end + 1), [], special);
    } else if (body.startsWith("/") || special) {
      u.host = special;
      u.path = pathOf(body.replace(/^\//, ""), [], special);
    } else u.opaque = percent(body, "");
    return u;
  };
  const relativeUrl = (u, body, base, split, special, whole) => {
    if (base.opaque !== null) {
      if (body !== "" || split.query !== undefined) throw invalid(whole);
      return { ...base, __proto__: null, hash: u.hash };
    }
    if (body.startsWith("//")) {
      const rest = body.slice(2), end = rest.indexOf("/");
      authority(u, end < 0 ? rest : rest.slice(0, end), special, whole);
      u.path = end < 0 ? (special ? [""] : []) : pathOf(rest.slice(end + 1), [], special);
      return u;
    }
    for (const key of ["username", "password", "hostname", "port", "host"]) u[key] = base[key];
    if (body.startsWith("/")) u.path = pathOf(body.slice(1), [], special);
    else if (body !== "") u.path = pathOf(body, base.path.slice(0, -1), special);
    else {
      u.path = base.path;
      if (split.query === undefined) u.query = base.query;
    }
    return u;
  };
  class URL {
    #u;
    #params = new URLSearchParams();
    constructor(input, base) {
      this.#u = parseUrl(input, base === undefined ? undefined : parseUrl($String(base)));
      this.#sync();
    }
    static canParse(input, base) {
      return attempt(() => (new URL(input, base), true), false);
    }
    static parse(input, base) {
      return attempt(() => new URL(input, base), null);
    }
    #sync() {
      watchParams(this.#params, this.#u.query.slice(1), () => {
        const text = this.#params.toString();
        this.#u.query = text && "?" + text;
      });
    }
    get protocol() {
      return this.#u.protocol;
    }
    get username() {
      return this.#u.username;
    }
    get password() {
      return this.#u.password;
    }
    get hostname() {
      return this.#u.hostname;
    }
    get port() {
      return this.#u.port;
    }
    get host() {
      return this.#u.hostname + (this.#u.port && ":" + this.#u.port);
    }
    get origin() {
      const { protocol } = this.#u;
      return protocol in PORTS && protocol !== "file:" ? protocol + "//" + this.host : "null";
    }
    get pathname() {
      const u = this.#u;
      return u.opaque ?? (u.path.length || u.host === false ? "/" + u.path.join("/") : "");
    }
    get search() {
      return this.#u.query;
    }
    get hash() {
      return this.#u.hash;
    }
    get searchParams() {
      return this.#params;
    }
    get href() {
      const u = this.#u;
      const login = u.username || u.password ? u.username + (u.password && ":" + u.password) + "@" : "";
      return u.protocol + (u.host ? "//" + login + this.host : "") + this.pathname + u.query + u.hash;
    }
    set href(text) {
      this.#u = parseUrl(text);
      this.#sync();
    }
    set protocol(text) {
      const name = $String(text).replace(/:.*$/s, "").toLowerCase() + ":";
      if (/^[a-z][a-z0-9+.-]*:$/.test(name) && name in PORTS === this.#u.protocol in PORTS) this.#u.protocol = name;
      if (this.#u.port === PORTS[this.#u.protocol]) this.#u.port = "";
    }
    set username(text) {
      if (this.#u.hostname) this.#u.username = percent($String(text), LOGIN);
    }
    set password(text) {
      if (this.#u.hostname) this.#u.password = percent($String(text), LOGIN);
    }
    set host(text) {
      if (this.#u.opaque === null) attempt(() => authority(this.#u, $String(text).split(/[/?#]/)[0], this.#u.protocol in PORTS, ""));
    }
    set hostname(text) {
      const name = this.#u.opaque === null ? hostOf($String(text).split(/[/?#:]/)[0], this.#u.protocol in PORTS) : null;
      if (name !== null) this.#u.hostname = name;
    }
    set port(text) {
      const digits = /^\d*/.exec($String(text))[0];
      if (!this.#u.hostname || (digits && +digits > 65535) || (!digits && text !== "")) return;
      this.#u.port = digits === PORTS[this.#u.protocol] ? "" : digits && $String(+digits);
    }
    set pathname(text) {
      if (this.#u.opaque === null) this.#u.path = pathOf(percent($String(text), "?#").replace(/^[/\\]/, ""), [], this.#u.protocol in PORTS);
    }
    set search(text) {
      const query = $String(text).replace(/^\?/, "");
      this.#u.query = query && "?" + percent(query, QUERY);
      this.#sync();
    }
    set hash(text) {
      const hash = $String(text).replace(/^#/, "");
      this.#u.hash = hash && "#" + percent(hash, FRAGMENT);
    }
    toString() {
      return this.href;
    }
    toJSON() {
      return this.href;
    }
  }
  put(G, "URL", URL);
  put(G, "URLSearchParams", URLSearchParams);

  // ── structuredClone ────────────────────────────────────────────────────────────────────────────

  const notCloned = (what) => new $DOMException(what + " could not be cloned.", "DataCloneError");
  const cloneInto = (v, seen) => {
    if (typeof v === "function" || typeof v === "symbol") throw notCloned(typeof v === "symbol" ? symbolText(v) : functionName(v));
    if (typeof v !== "object" || v === null) return v;
    if (mapHas(seen, v)) return mapGet(seen, v);
    const keep = (made) => (mapSet(seen, v, made), made);
    const fields = (made) => {
      for (const key of keys(v)) put(made, key, cloneInto(v[key], seen), true);
      return made;
    };
    if (isArray(v)) {
      const made = keep([]);
      made.length = v.length;
      return fields(made);
    }
    if (v instanceof $Date) return keep(new $Date(time(v)));
    if (v instanceof RegExp) return keep(new RegExp(v.source, v.flags));
    if (v instanceof ArrayBuffer) return keep(v.slice(0));
    if (isView(v)) {
      const buffer = cloneInto(v.buffer, seen);
      const Type = G[typedTag(v) ?? "DataView"];
      return keep(new Type(buffer, v.byteOffset, typedTag(v) ? v.length : v.byteLength));
    }
    if (v instanceof $Map) {
      const made = keep(new $Map());
      mapEach(v, (x, key) => mapSet(made, cloneInto(key, seen), cloneInto(x, seen)));
      return made;
    }
    if (v instanceof $Set) {
      const made = keep(new $Set());
      setEach(v, (x) => setAdd(made, cloneInto(x, seen)));
      return made;
    }
    if (isErrorObject(v)) {
      const made = keep(new (errorTypes[v.name] ?? $Error)(v.message));
      put(made, "stack", v.stack);
      if (hasOwn(v, "cause")) put(made, "cause", cloneInto(v.cause, seen));
      return made;
    }
    if (v instanceof $Promise || v instanceof WeakMap || v instanceof WeakSet || v instanceof WeakRef)
      throw notCloned("#<" + typeName(v) + ">");
    return fields(keep({}));
  };
  put(G, "structuredClone", function structuredClone(v) {
    return cloneInto(v, new $Map());
  });

  let lastBuiltin;
  for (lastBuiltin of ownKeys(G).filter((name) => typeof name === "string")) setAdd(builtin, lastBuiltin);
  return { open, bind, begin, settle, poll, rest, close, overflow, rejected };
});
