from dataclasses import dataclass, field


@dataclass
class Changes:
    """The changes between two versions of a table."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return {"added": sorted(self.added), "removed": sorted(self.removed), "changed": self.changed}


def record_changes(
    before: list[dict[str, object]], after: list[dict[str, object]], key: str
) -> dict[str, object]:
    """Return which records were added, removed or changed, and in which fields."""
    old = {str(record[key]): record for record in before}
    new = {str(record[key]): record for record in after}
    changes = Changes()
    for name in old | new:
        if name not in old:
            changes.added.append(name)
        elif name not in new:
            changes.removed.append(name)
        elif fields := sorted(f for f in old[name] | new[name] if old[name].get(f) != new[name].get(f)):
            changes.changed[name] = fields
    return changes.as_dict()
