"""The floor: a bare asyncio loop over dicts that appends its messages to SQLite (WAL, `synchronous=FULL`).

No framework: the least that a durable turn can do. One commit for each message; the history stays in memory.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

from measuring import CHUNK, REPLY, Framework, Runner, Unsupported, look_up, main, scripted_calls

Session = dict[str, Any]


class BareLoop(Runner):
    def __init__(self, kind: str, path: str | None, chunks: int) -> None:
        self.kind, self.chunks, self.db = kind, chunks, None
        if path:
            self.db = sqlite3.connect(path, isolation_level=None)
            self.db.execute("pragma journal_mode=wal")
            self.db.execute("pragma synchronous=full")
            self.db.execute(
                "create table if not exists node (id integer primary key, session text, body text)"
            )
            self.db.execute("create index if not exists by_session on node (session, id)")

    def new_session(self, name: str) -> Session:
        return {"name": name, "messages": []}

    def reopen(self, name: str) -> Session:
        if self.db is None:
            raise Unsupported("no store")
        rows = self.db.execute("select body from node where session = ? order by id", (name,))
        return {"name": name, "messages": [json.loads(body) for (body,) in rows]}

    def add(self, session: Session, message: dict[str, Any]) -> None:
        session["messages"].append(message)
        if self.db:
            row = (session["name"], json.dumps(message))
            self.db.execute("insert into node (session, body) values (?, ?)", row)

    async def reply(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        results = 0
        for message in reversed(messages):
            if message["role"] == "user":
                break
            results += message["role"] == "tool"
        calls = [{"id": x, "x": x} for x in scripted_calls(self.kind, results)]
        return {"role": "assistant", "calls": calls} if calls else {"role": "assistant", "content": REPLY}

    async def look_up(self, x: int) -> str:
        return look_up()

    async def turn(self, session: Session, text: str) -> str:
        self.add(session, {"role": "user", "content": text})
        while True:
            reply = await self.reply(session["messages"])
            self.add(session, reply)
            if "calls" not in reply:
                return reply["content"]
            results = await asyncio.gather(*(self.look_up(call["x"]) for call in reply["calls"]))
            for call, result in zip(reply["calls"], results, strict=True):
                self.add(session, {"role": "tool", "id": call["id"], "content": result})

    async def arriving(self) -> Any:
        for _ in range(self.chunks):
            yield CHUNK

    async def stream(self, session: Session, text: str) -> int:
        self.add(session, {"role": "user", "content": text})
        chunks = [chunk async for chunk in self.arriving()]
        self.add(session, {"role": "assistant", "content": "".join(chunks)})
        return len(chunks)

    def close(self) -> None:
        if self.db:
            self.db.close()


class Floor(Framework):
    name = "floor"
    import_statement = "import asyncio, sqlite3, json"

    def make(self, kind: str, path: str | None, chunks: int) -> BareLoop:
        if kind in ("code_step_1call", "hitl"):
            raise Unsupported("the floor has none")
        return BareLoop(kind, path, chunks)


if __name__ == "__main__":
    main(Floor(), variant="full")
