"""The engine's Python package, imported when a session first needs it.

`from standfast.sandbox.monty import engine` costs nothing; `engine.MontyComplete` imports it, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_monty import (
        ExcType as ExcType,
    )
    from pydantic_monty import (
        Frame as Frame,
    )
    from pydantic_monty import (
        FunctionSnapshot as FunctionSnapshot,
    )
    from pydantic_monty import (
        FutureSnapshot as FutureSnapshot,
    )
    from pydantic_monty import (
        Monty as Monty,
    )
    from pydantic_monty import (
        MontyComplete as MontyComplete,
    )
    from pydantic_monty import (
        MontyConversionError as MontyConversionError,
    )
    from pydantic_monty import (
        MontyCrashedError as MontyCrashedError,
    )
    from pydantic_monty import (
        MontyError as MontyError,
    )
    from pydantic_monty import (
        MontyRuntimeError as MontyRuntimeError,
    )
    from pydantic_monty import (
        MontySession as MontySession,
    )
    from pydantic_monty import (
        MontySyntaxError as MontySyntaxError,
    )
    from pydantic_monty import (
        MontyTypingError as MontyTypingError,
    )
    from pydantic_monty import (
        NameLookupSnapshot as NameLookupSnapshot,
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    import pydantic_monty

    value = globals()[name] = getattr(pydantic_monty, name)
    return value
