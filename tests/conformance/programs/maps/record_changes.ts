type Row = Record<string, string | number | boolean | null>;

interface Changes {
  added: string[];
  removed: string[];
  changed: Record<string, string[]>;
}

function by(rows: Row[], key: keyof Row): Map<string, Row> {
  return new Map(rows.map((row) => [String(row[key]), row]));
}

/** Return which records were added, removed or changed, and in which fields. */
function recordChanges(before: Row[], after: Row[], key: string): Changes {
  const [old, fresh] = [by(before, key), by(after, key)];
  const changes: Changes = { added: [], removed: [], changed: {} };
  for (const name of new Set([...old.keys(), ...fresh.keys()])) {
    const [was, is] = [old.get(name), fresh.get(name)];
    if (!was) changes.added.push(name);
    else if (!is) changes.removed.push(name);
    else {
      const fields = Object.keys({ ...was, ...is }).filter((field) => (was[field] ?? null) !== (is[field] ?? null));
      if (fields.length) changes.changed[name] = fields.sort();
    }
  }
  changes.added.sort();
  changes.removed.sort();
  return changes;
}
