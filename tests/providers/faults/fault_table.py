"""The table of faults. Every fault is tried on every vendor: `cell` parametrizes and registers the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from fault_vendors import VENDORS

FAULTS: Final = {
    "cut-read": "a stream cut at every byte, as the reader sees it",
    "cut-wire": "a connection cut at every byte of its body: FIN, RST, or a proper end",
    "cut-turn": "a turn whose reply is cut off recovers, and takes back what it showed",
    "cut-length": "a reply that ends in the middle of a call for want of room",
    "split": "a stream in writes of 1, 2, 3 and 7 bytes",
    "stall": "nothing before the headers, before the first byte, in the middle, in all the time there is",
    "stall-after-end": "nothing after the last word, not even the end of the body",
    "stall-turn": "a turn whose reply stalls recovers",
    "storm": "429, 500, 502, 503, 504 and 529, and then a reply",
    "storm-waits": "a refusal that says how long to wait, in every form",
    "storm-for-ever": "refusals without end",
    "storm-budget": "waits that there is no time for",
    "storm-mixed": "another failure each time",
    "error-event": "an error in the middle of a stream",
    "order": "events twice, swapped, missing and unreadable, each in turn",
    "big-arguments": "1 MB of arguments in many pieces",
    "big-arguments-cut": "1 MB of arguments that are cut off",
    "many-chunks": "a reply of 100,000 chunks",
    "length-long": "a Content-Length that is too long",
    "length-short": "a Content-Length that is too short",
    "length-short-open": "a Content-Length that is too short, on a connection that stays open",
    "redirect-host": "a redirect to another host",
    "redirect-path": "a redirect to the same host",
    "key-in-error": "an error that repeats the key",
    "html": "a proxy that answers in HTML",
    "cancel": "a turn that is cancelled in the middle of a stream",
    "kill": "a process that is killed in the middle of a stream",
    "shared": "sessions of two runtimes over one provider",
    "shared-loops": "two event loops over one provider",
}
CELLS: Final[dict[tuple[str, str], str]] = {}
"""The test of each fault and vendor, for the files that have been imported."""

Test = TypeVar("Test", bound=Callable[..., Any])


def cell(fault: str) -> Callable[[Test], Test]:
    """Make a test cover *fault*: it runs once for each `vendor`."""

    def noted(test: Test) -> Test:
        for vendor in VENDORS:
            CELLS[fault, vendor.name] = test.__name__
        made: Test = pytest.mark.parametrize("vendor", VENDORS, ids=str)(test)
        return made

    return noted
