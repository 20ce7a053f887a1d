type Fields = Record<string, string | string[]>;

const decode = (text: string): string =>
  decodeURIComponent(text.replace(/\+/g, " ").replace(/%(?![0-9a-f]{2})/gi, "%25"));

/** Return the fields of a query; a name that is repeated, or ends in `[]`, has a list. */
function queryString(query: string): Fields {
  const fields: Fields = {};
  for (const pair of query.replace(/^\?/, "").split("&").filter(Boolean)) {
    const cut = pair.indexOf("=");
    const [rawName, rawValue] = cut < 0 ? [pair, ""] : [pair.slice(0, cut), pair.slice(cut + 1)];
    const [, name, list] = decode(rawName).match(/^(.*?)(\[\])?$/s)!;
    const value = decode(rawValue);
    const old = Object.hasOwn(fields, name) ? fields[name] : undefined;
    if (Array.isArray(old)) old.push(value);
    else if (old !== undefined) fields[name] = [old, value];
    else fields[name] = list ? [value] : value;
  }
  return fields;
}
