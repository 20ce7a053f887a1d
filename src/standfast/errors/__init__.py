"""Standfast's errors: one exception tree and one table of codes.

The first split is whose fault it is::

    StandfastError
    ├── CallerError            the request cannot be done as asked
    │   ├── InvalidArgument        INVALID_ARGUMENT
    │   │   └── ValueTooLarge      REQUEST_TOO_LARGE
    │   ├── RequestTooLarge        REQUEST_TOO_LARGE
    │   ├── InvalidSessionId       INVALID_SESSION_ID
    │   ├── InvalidToolName        INVALID_TOOL_NAME
    │   │   ├── ToolNameTaken      TOOL_CONFLICT
    │   │   └── ToolConflict       TOOL_CONFLICT
    │   ├── UnknownTool            UNKNOWN_TOOL
    │   │   └── ToolOrphaned       TOOL_ORPHANED
    │   ├── GenerationMismatch     GENERATION_MISMATCH
    │   ├── AccessDenied           PERMISSION_DENIED
    │   ├── SessionNotFound        SESSION_NOT_FOUND
    │   ├── SessionExists          SESSION_EXISTS
    │   ├── SessionWaiting         WAITING_FOR_APPROVAL
    │   ├── SessionBusy            SESSION_BUSY
    │   ├── TurnNotFound           TURN_NOT_FOUND
    │   ├── TurnUnfinished         WAITING_FOR_APPROVAL, INTERRUPTED
    │   ├── TurnWaitsForItself     TURN_WAITS_FOR_ITSELF
    │   ├── RuntimeRequired        RUNTIME_REQUIRED
    │   ├── IdempotencyConflict    IDEMPOTENCY_CONFLICT
    │   ├── InputNotFound          INPUT_NOT_FOUND
    │   ├── NodeNotFound           NODE_NOT_FOUND
    │   ├── StaleBranch            STALE_BRANCH
    │   ├── TokenNotFound          TOKEN_NOT_FOUND
    │   ├── TokenAlreadyUsed       TOKEN_ALREADY_USED
    │   ├── ApprovalNotFound       APPROVAL_NOT_FOUND
    │   ├── GrantNotFound          GRANT_NOT_FOUND
    │   ├── JournalNotKept         JOURNAL_NOT_KEPT
    │   ├── ApprovalAlreadyDecided APPROVAL_ALREADY_DECIDED
    │   ├── TaskExists             TASK_EXISTS
    │   ├── TaskNotFound           TASK_NOT_FOUND
    │   ├── MonitorNotFound        MONITOR_NOT_FOUND
    │   ├── TriggerNotFound        TRIGGER_NOT_FOUND
    │   ├── SignatureRefused       PERMISSION_DENIED
    │   ├── RequestRefused         UNAUTHENTICATED, PERMISSION_DENIED, RATE_LIMITED and others
    │   ├── ServiceUnavailable     SERVICE_UNAVAILABLE
    │   ├── InvalidPlugin          INVALID_PLUGIN
    │   ├── PluginConflict         PLUGIN_CONFLICT
    │   ├── ProtocolError          PROTOCOL_ERROR
    │   ├── PluginActionError
    │   │   ├── UnknownAction      METHOD_NOT_FOUND
    │   │   ├── UnknownSession     SESSION_NOT_FOUND
    │   │   ├── MissingSession     SESSION_REQUIRED
    │   │   └── UnexpectedSession  SESSION_NOT_ACCEPTED
    │   ├── RepliesLeftOver        INVALID_ARGUMENT
    │   ├── ScriptRefused          SYNTAX_ERROR, UNSUPPORTED_FEATURE
    │   ├── TypeCheckFailed        TIMEOUT_WALL, TIMEOUT_CPU, MEMORY_EXCEEDED
    │   ├── UnreadableInput        RUNTIME_ERROR
    │   └── SnapshotRefused        SNAPSHOT_CORRUPT, SNAPSHOT_VERSION_MISMATCH,
    │                              SNAPSHOT_CAPABILITY_MISMATCH
    ├── OperatorError          the installation or its configuration is wrong
    │   ├── NotConfigured          NOT_CONFIGURED
    │   ├── ProviderUnconfigured   PROVIDER_UNCONFIGURED
    │   ├── ProviderUnavailable    PROVIDER_UNAVAILABLE
    │   ├── ProviderMismatch       PROVIDER_MISMATCH
    │   ├── CodeExecutionUnavailable   ENGINE_UNAVAILABLE
    │   ├── TurnNotRunnable        a turn cannot run in this process and is unchanged
    │   │   ├── DepsMissing        DEPS_MISSING
    │   │   ├── EngineMismatch     ENGINE_MISMATCH
    │   │   └── WrongAgent         WRONG_AGENT
    │   └── RuntimeClosed          RUNTIME_CLOSED
    ├── OutsideError           a tool, an engine or the network failed
    │   ├── ToolError              the tool author's own code, or TOOL_ERROR
    │   ├── BadToolSource          BAD_TOOL_SOURCE
    │   ├── McpServerFailed        MCP_SERVER_FAILED
    │   │   └── McpSignInRequired  MCP_SIGN_IN_REQUIRED
    │   ├── McpServerChanged       MCP_SERVER_CHANGED
    │   ├── CommandNotStarted      IO_ERROR
    │   ├── ServerUnreachable      IO_ERROR
    │   ├── CallRefused            TOOL_ERROR, SERIALIZE_ERROR, REQUEST_TOO_LARGE and others
    │   ├── EngineFailed           INTERRUPTED
    │   │   ├── CodeExecutionRuntimeStopped
    │   │   ├── StateTooLarge      MEMORY_EXCEEDED
    │   │   └── CellTooLarge       MEMORY_EXCEEDED
    │   ├── InstructionsFailed     INSTRUCTIONS_FAILED
    │   ├── PluginFailed           PLUGIN_ERROR
    │   │   └── PluginStateLost    PLUGIN_ERROR
    │   └── ModelError             PROVIDER_ERROR, CONTEXT_OVERFLOW, RATE_LIMITED or the provider's own
    │       └── UnexpectedModelCall    PROVIDER_ERROR
    ├── StoreError             a stored record cannot be read or written
    │   ├── RecordCorrupt          RECORD_CORRUPT
    │   ├── SchemaTooNew           SCHEMA_TOO_NEW
    │   ├── StaleState             STALE_STATE
    │   ├── LeaseLost              LEASE_LOST
    │   └── StoreUnavailable       STORE_UNAVAILABLE
    ├── InternalError          our fault                 RUNTIME_ERROR
    └── TurnStopped            a turn ended without an answer, for any of these reasons, with its code

Rule 1: an exception and its `ErrorObject` are two views of one thing.
Rule 2: a code, once released, never changes its meaning or its status.
Rule 3: waiting for a person is a value (a run status), never an exception.
"""

from standfast.errors.caller import AccessDenied as AccessDenied
from standfast.errors.caller import ApprovalAlreadyDecided as ApprovalAlreadyDecided
from standfast.errors.caller import ApprovalNotFound as ApprovalNotFound
from standfast.errors.caller import GenerationMismatch as GenerationMismatch
from standfast.errors.caller import GrantNotFound as GrantNotFound
from standfast.errors.caller import IdempotencyConflict as IdempotencyConflict
from standfast.errors.caller import InputNotFound as InputNotFound
from standfast.errors.caller import InvalidArgument as InvalidArgument
from standfast.errors.caller import InvalidPlugin as InvalidPlugin
from standfast.errors.caller import InvalidSessionId as InvalidSessionId
from standfast.errors.caller import InvalidToolName as InvalidToolName
from standfast.errors.caller import JournalNotKept as JournalNotKept
from standfast.errors.caller import MissingSession as MissingSession
from standfast.errors.caller import MonitorNotFound as MonitorNotFound
from standfast.errors.caller import NodeNotFound as NodeNotFound
from standfast.errors.caller import PluginActionError as PluginActionError
from standfast.errors.caller import PluginConflict as PluginConflict
from standfast.errors.caller import ProtocolError as ProtocolError
from standfast.errors.caller import RepliesLeftOver as RepliesLeftOver
from standfast.errors.caller import RequestRefused as RequestRefused
from standfast.errors.caller import RequestTooLarge as RequestTooLarge
from standfast.errors.caller import RuntimeRequired as RuntimeRequired
from standfast.errors.caller import ScriptRefused as ScriptRefused
from standfast.errors.caller import ServiceUnavailable as ServiceUnavailable
from standfast.errors.caller import SessionBusy as SessionBusy
from standfast.errors.caller import SessionExists as SessionExists
from standfast.errors.caller import SessionNotFound as SessionNotFound
from standfast.errors.caller import SessionWaiting as SessionWaiting
from standfast.errors.caller import SignatureRefused as SignatureRefused
from standfast.errors.caller import SnapshotRefused as SnapshotRefused
from standfast.errors.caller import StaleBranch as StaleBranch
from standfast.errors.caller import TaskExists as TaskExists
from standfast.errors.caller import TaskNotFound as TaskNotFound
from standfast.errors.caller import TokenAlreadyUsed as TokenAlreadyUsed
from standfast.errors.caller import TokenNotFound as TokenNotFound
from standfast.errors.caller import ToolConflict as ToolConflict
from standfast.errors.caller import ToolNameTaken as ToolNameTaken
from standfast.errors.caller import ToolOrphaned as ToolOrphaned
from standfast.errors.caller import TriggerNotFound as TriggerNotFound
from standfast.errors.caller import TurnNotFound as TurnNotFound
from standfast.errors.caller import TurnUnfinished as TurnUnfinished
from standfast.errors.caller import TurnWaitsForItself as TurnWaitsForItself
from standfast.errors.caller import TypeCheckFailed as TypeCheckFailed
from standfast.errors.caller import UnexpectedSession as UnexpectedSession
from standfast.errors.caller import UnknownAction as UnknownAction
from standfast.errors.caller import UnknownSession as UnknownSession
from standfast.errors.caller import UnknownTool as UnknownTool
from standfast.errors.caller import UnreadableInput as UnreadableInput
from standfast.errors.caller import ValueTooLarge as ValueTooLarge
from standfast.errors.codes import STATUS_OF_CODE as STATUS_OF_CODE
from standfast.errors.codes import Code as Code
from standfast.errors.codes import ErrorObject as ErrorObject
from standfast.errors.codes import Span as Span
from standfast.errors.codes import TurnCode as TurnCode
from standfast.errors.kinds import CallerError as CallerError
from standfast.errors.kinds import InternalError as InternalError
from standfast.errors.kinds import OperatorError as OperatorError
from standfast.errors.kinds import OutsideError as OutsideError
from standfast.errors.kinds import StandfastError as StandfastError
from standfast.errors.kinds import StoreError as StoreError
from standfast.errors.operator import CodeExecutionUnavailable as CodeExecutionUnavailable
from standfast.errors.operator import DepsMissing as DepsMissing
from standfast.errors.operator import EngineMismatch as EngineMismatch
from standfast.errors.operator import NotConfigured as NotConfigured
from standfast.errors.operator import ProviderMismatch as ProviderMismatch
from standfast.errors.operator import ProviderUnavailable as ProviderUnavailable
from standfast.errors.operator import ProviderUnconfigured as ProviderUnconfigured
from standfast.errors.operator import RuntimeClosed as RuntimeClosed
from standfast.errors.operator import TurnNotRunnable as TurnNotRunnable
from standfast.errors.operator import WrongAgent as WrongAgent
from standfast.errors.outside import BadToolSource as BadToolSource
from standfast.errors.outside import CallRefused as CallRefused
from standfast.errors.outside import CellTooLarge as CellTooLarge
from standfast.errors.outside import CodeExecutionRuntimeStopped as CodeExecutionRuntimeStopped
from standfast.errors.outside import CommandNotStarted as CommandNotStarted
from standfast.errors.outside import EngineFailed as EngineFailed
from standfast.errors.outside import InstructionsFailed as InstructionsFailed
from standfast.errors.outside import McpServerChanged as McpServerChanged
from standfast.errors.outside import McpServerFailed as McpServerFailed
from standfast.errors.outside import McpSignInRequired as McpSignInRequired
from standfast.errors.outside import ModelError as ModelError
from standfast.errors.outside import PluginFailed as PluginFailed
from standfast.errors.outside import PluginStateLost as PluginStateLost
from standfast.errors.outside import ServerUnreachable as ServerUnreachable
from standfast.errors.outside import StateTooLarge as StateTooLarge
from standfast.errors.outside import ToolError as ToolError
from standfast.errors.outside import UnexpectedModelCall as UnexpectedModelCall
from standfast.errors.store import LeaseLost as LeaseLost
from standfast.errors.store import RecordCorrupt as RecordCorrupt
from standfast.errors.store import SchemaTooNew as SchemaTooNew
from standfast.errors.store import StaleState as StaleState
from standfast.errors.store import StoreUnavailable as StoreUnavailable
from standfast.errors.turn_stopped import TurnStopped as TurnStopped
