type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
type Settings = { [key: string]: Json };

const isSettings = (value: Json | undefined): value is Settings =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Merge settings in layers: objects merge, null removes a setting, a list with a leading "+" appends. */
function mergeSettings(base: Settings, ...layers: Settings[]): Settings {
  const merged: Settings = { ...base };
  for (const layer of layers) {
    for (const [key, value] of Object.entries(layer)) {
      const old = merged[key];
      if (value === null) delete merged[key];
      else if (isSettings(value) && isSettings(old)) merged[key] = mergeSettings(old, value);
      else if (!Array.isArray(value) || !Array.isArray(old) || value[0] !== "+") merged[key] = value;
      else merged[key] = [...old, ...value.slice(1)];
    }
  }
  return merged;
}
