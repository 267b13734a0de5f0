// What a row of measured times comes to. Pure.

/** Upper edges of the histogram's buckets in milliseconds; the last bucket has none. */
export const EDGES_MS = Object.freeze([5, 20, 50, 100, 200, 500]);

/** The value that a share of all is at or below (nearest rank), or null of nothing. */
export function percentile(values, share) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** For each bucket its label, its count, and the share of all values in it or below. */
export function histogram(values) {
  const counts = new Array(EDGES_MS.length + 1).fill(0);
  for (const value of values) {
    const bucket = EDGES_MS.findIndex((edge) => value < edge);
    counts[bucket < 0 ? EDGES_MS.length : bucket] += 1;
  }
  let below = 0;
  return counts.map((count, index) => {
    below += count;
    const share = values.length === 0 ? 0 : below / values.length;
    return { label: EDGES_MS[index] === undefined ? `${EDGES_MS.at(-1)}+` : `<${EDGES_MS[index]}`, count, share };
  });
}

/** The server's stages of the time to the first token, and what is left for the way here; in milliseconds. */
export function stagesOf(answer) {
  const names = ["queue", "preprocess", "prefill", "first_decode", "cache_sync", "egress"];
  const timing = answer.final?.timing;
  if (timing === undefined) return null;
  const stages = names.map((name) => ({ name, ms: Math.max(0, Number(timing[`${name}_ms`]) || 0) }));
  const known = stages.reduce((sum, { ms }) => sum + ms, 0);
  return [...stages, { name: "way", ms: Math.max(0, (answer.firstTokenMs ?? known) - known) }];
}

/** A time for people: three digits at most, with its unit. */
export function formatMs(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 1_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}
