from dataclasses import dataclass


@dataclass
class Feed:
    """A sorted list of posts and the position up to which it has been read."""

    name: str
    times: list[int]
    place: int = 0

    def done(self) -> bool:
        return self.place == len(self.times)

    def take(self) -> int:
        self.place += 1
        return self.times[self.place - 1]


def merge_feeds(feeds: dict[str, list[int]], limit: int) -> list[str]:
    """Merge the oldest posts of several sorted feeds into one list; ties are resolved by the feed's name."""
    open_feeds = [Feed(name, times) for name, times in sorted(feeds.items())]
    merged: list[str] = []
    while len(merged) < limit:
        waiting = [feed for feed in open_feeds if not feed.done()]
        if not waiting:
            break
        oldest = min(waiting, key=lambda feed: feed.times[feed.place])
        merged.append(f"{oldest.name}@{oldest.take()}")
    return merged
