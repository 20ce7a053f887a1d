interface Result {
  team: string;
  seconds?: number;
}

const runLeg = async (distance: number, speed: number): Promise<number> => {
  if (speed <= 0) throw new RangeError("a runner fell");
  return distance / speed;
};

/** Return the time of a team whose runners run one after the other. */
async function runTeam(team: string, speeds: number[], distance: number): Promise<Result> {
  let seconds = 0;
  for (const speed of speeds) seconds += await runLeg(distance, speed);
  return { team, seconds };
}

/** Return the standings of a relay race of all teams at once; teams that did not finish come last. */
async function relayTeams(teams: Record<string, number[]>, distance: number): Promise<string[]> {
  const names = Object.keys(teams);
  const settled = await Promise.allSettled(names.map((team) => runTeam(team, teams[team], distance)));
  const results = settled.map((one, i): Result => (one.status === "fulfilled" ? one.value : { team: names[i] }));
  const key = (result: Result): number => result.seconds ?? Number.POSITIVE_INFINITY;
  results.sort((a, b) => (key(a) === key(b) ? (a.team < b.team ? -1 : 1) : key(a) - key(b)));
  return results.map(({ team, seconds }) => {
    return `${team} ${seconds === undefined ? "did not finish" : `${seconds.toFixed(1)} s`}`;
  });
}
