import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """The time of a team; None if a runner fell."""

    team: str
    seconds: float | None


async def run_leg(distance: float, speed: float) -> float:
    if speed <= 0:
        raise ValueError("a runner fell")
    return distance / speed


async def run_team(team: str, speeds: list[float], distance: float) -> Result:
    """Return the time of a team whose runners run one after the other."""
    total = 0.0
    try:
        for speed in speeds:
            total += await run_leg(distance, speed)
    except ValueError:
        return Result(team, None)
    return Result(team, total)


async def relay_teams(teams: dict[str, list[float]], distance: float) -> list[str]:
    """Return the standings of a relay race of all teams at once; teams that did not finish come last."""
    results = await asyncio.gather(*[run_team(team, speeds, distance) for team, speeds in teams.items()])
    ordered = sorted(results, key=lambda result: (result.seconds is None, result.seconds or 0, result.team))
    return [f"{r.team} {'did not finish' if r.seconds is None else f'{r.seconds:.1f} s'}" for r in ordered]
