const enum State {
  Start,
  Plain,
  Quoted,
  Quote,
}

/** Return the records of a CSV text by the names in its header; quotes are doubled in quoted fields. */
function csvRecords(text: string, separator: string = ","): Record<string, string>[] {
  const rows: string[][] = [[""]];
  let state: State = State.Start;
  const add = (letter: string): void => {
    const row = rows[rows.length - 1];
    row[row.length - 1] += letter;
  };
  for (const letter of text.replaceAll("\r\n", "\n")) {
    switch (true) {
      case state === State.Quoted && letter !== '"':
        add(letter);
        break;
      case state === State.Quoted:
        state = State.Quote;
        break;
      case letter === '"' && state !== State.Plain:
        if (state === State.Quote) add('"');
        state = State.Quoted;
        break;
      case letter === separator:
        rows[rows.length - 1].push("");
        state = State.Start;
        break;
      case letter === "\n":
        rows.push([""]);
        state = State.Start;
        break;
      default:
        add(letter);
        state = State.Plain;
    }
  }
  const [names = [], ...records] = rows.filter((row) => row.length > 1 || row[0] !== "");
  return records.map((record) => {
    const pairs = names.slice(0, record.length).map((name, place) => [name, record[place]]);
    return Object.fromEntries(pairs) as Record<string, string>;
  });
}
