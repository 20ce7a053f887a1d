from typing import Any


def merge_settings(base: dict[str, Any], *layers: dict[str, Any]) -> dict[str, Any]:
    """Merge settings in layers: objects merge, null removes a setting, a list with a leading "+" appends."""
    merged = dict(base)
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            if value is None:
                merged.pop(key, None)
            elif isinstance(value, dict) and isinstance(old, dict):
                merged[key] = merge_settings(old, value)
            elif isinstance(value, list) and isinstance(old, list) and value[:1] == ["+"]:
                merged[key] = old + value[1:]
            else:
                merged[key] = value
    return merged
