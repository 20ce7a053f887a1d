"""The events that `async for event in session.turn(...)` and `session.observe(...)` yield."""

from standfast.model.events import Event as Event
from standfast.model.events import Gap as Gap
from standfast.model.events import MessagesDelivered as MessagesDelivered
from standfast.model.events import ModelCallFailed as ModelCallFailed
from standfast.model.events import ModelCallStarted as ModelCallStarted
from standfast.model.events import NodeCommitted as NodeCommitted
from standfast.model.events import PluginEventEmitted as PluginEventEmitted
from standfast.model.events import ReasoningStreamed as ReasoningStreamed
from standfast.model.events import ReplyReceived as ReplyReceived
from standfast.model.events import TaskChanged as TaskChanged
from standfast.model.events import TextRetracted as TextRetracted
from standfast.model.events import TextStreamed as TextStreamed
from standfast.model.events import ToolCallSettled as ToolCallSettled
from standfast.model.events import ToolCallStarted as ToolCallStarted
from standfast.model.events import ToolReported as ToolReported
from standfast.model.events import TurnBegan as TurnBegan
from standfast.model.events import TurnBlocked as TurnBlocked
from standfast.model.events import TurnCommitted as TurnCommitted
from standfast.model.events import TurnParked as TurnParked
from standfast.model.events import WaitBegan as WaitBegan
from standfast.model.events import WaitOver as WaitOver
