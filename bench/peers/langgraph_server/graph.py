"""The agent of `bench/server.py` for LangGraph's server: one reply of 400 characters, no model behind it."""

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

REPLY = "r" * 400


async def answer(state: MessagesState) -> dict:
    return {"messages": [AIMessage(REPLY)]}


graph = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile()
)
