"""An agent with one tool. The model is a script, so it needs no key.

Run it with `python examples/ten_lines.py`.
"""

from standfast import Agent, tool


@tool(side_effect="read")
def order(order_id: str) -> dict[str, int]:
    """Look up an order."""
    return {"cents": 4200, "days_late": 6}


agent = Agent("scripted:demo", instructions="You help customers.", tools=[order])
print(agent.run_sync("Did order A1 arrive late?").output)
